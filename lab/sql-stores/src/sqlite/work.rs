//! The benchmark's queries and changes as SQL statements.

use netram_oo7::store::{
    AssemblyValues, CompositeUse, ConnectionValues, DesignValues, LinkDirection, Oo7Index, PartLink,
    PartValues,
};
use netram_oo7::{Oo7Error, Oo7Transaction};
use rusqlite::types::FromSql;
use rusqlite::{OptionalExtension, Params, Row, params};

use super::{SqliteTransaction, backend_error, schema};

impl SqliteTransaction<'_> {
    /// Runs a statement that returns nothing.
    pub(super) fn run(&mut self, statement: &str) -> Result<(), Oo7Error> {
        self.change(statement, []).map(drop)
    }

    fn change(&mut self, statement: &str, values: impl Params) -> Result<usize, Oo7Error> {
        let mut statement = self.connection.prepare_cached(statement).map_err(backend_error)?;
        statement.execute(values).map_err(backend_error)
    }

    /// Changes one existing row.
    fn change_one(
        &mut self,
        what: &'static str,
        id: u32,
        statement: &str,
        values: impl Params,
    ) -> Result<(), Oo7Error> {
        match self.change(statement, values)? {
            0 => Err(damaged(what, id)),
            _ => Ok(()),
        }
    }

    /// The first row, if there is one.
    pub(super) fn ask<T>(
        &mut self,
        question: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Oo7Error> {
        let mut statement = self.connection.prepare_cached(question).map_err(backend_error)?;
        statement
            .query_row(values, read)
            .optional()
            .map_err(backend_error)
    }

    /// The row that must exist.
    fn one<T>(
        &mut self,
        what: &'static str,
        id: u32,
        question: &str,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Oo7Error> {
        self.ask(question, [id], read)?.ok_or(damaged(what, id))
    }

    fn value<T: FromSql>(&mut self, what: &'static str, id: u32, question: &str) -> Result<T, Oo7Error> {
        self.one(what, id, question, |row| row.get(0))
    }

    fn all<T>(
        &mut self,
        question: &str,
        values: impl Params,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
        into: &mut Vec<T>,
    ) -> Result<(), Oo7Error> {
        let mut statement = self.connection.prepare_cached(question).map_err(backend_error)?;
        let mut rows = statement.query(values).map_err(backend_error)?;
        while let Some(row) = rows.next().map_err(backend_error)? {
            into.push(read(row).map_err(backend_error)?);
        }
        Ok(())
    }
}

fn damaged(what: &'static str, id: u32) -> Oo7Error {
    Oo7Error::Damaged { what, at: id.into() }
}

fn first(row: &Row<'_>) -> rusqlite::Result<u32> {
    row.get(0)
}

fn design(row: &Row<'_>) -> rusqlite::Result<DesignValues> {
    Ok(DesignValues {
        id: row.get(0)?,
        kind: row.get(1)?,
        date: row.get(2)?,
    })
}

fn number_of(how: CompositeUse) -> u32 {
    match how {
        CompositeUse::Private => 0,
        CompositeUse::Shared => 1,
    }
}

fn key_of(assembly: AssemblyValues) -> u32 {
    2 * assembly.design.id + u32::from(assembly.base)
}

impl Oo7Transaction for SqliteTransaction<'_> {
    type Module = u32;
    type Assembly = u32;
    type Composite = u32;
    type Part = u32;
    type Document = u32;

    fn module(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        self.ask("select id from module where id = ?1", [id], first)
    }

    fn base_assembly(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        self.ask("select key from assembly where key = 2 * ?1 + 1", [id], first)
    }

    fn composite(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        self.ask("select id from composite where id = ?1", [id], first)
    }

    fn part(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        self.ask("select id from part where id = ?1", [id], first)
    }

    fn document(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        self.ask("select id from document where id = ?1", [id], first)
    }

    fn document_titled(&mut self, title: &[u8]) -> Result<Option<u32>, Oo7Error> {
        self.ask("select id from document where title = ?1", [title], first)
    }

    fn parts_dated(&mut self, from: u32, to: u32, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        let dated = "select id from part where date between ?1 and ?2 order by date, id";
        self.all(dated, [from, to], first, into)
    }

    fn all_parts(&mut self, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        self.all("select id from part order by id", [], first, into)
    }

    fn all_base_assemblies(&mut self, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        self.all(
            "select key from assembly where key % 2 = 1 order by key",
            [],
            first,
            into,
        )
    }

    fn all_composites(&mut self, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        self.all("select id from composite order by id", [], first, into)
    }

    fn entries(&mut self, index: Oo7Index) -> Result<u64, Oo7Error> {
        let count = match index {
            Oo7Index::Module => "select count(*) from module",
            Oo7Index::Base => "select count(*) from assembly where key % 2 = 1",
            Oo7Index::Composite => "select count(*) from composite",
            Oo7Index::Document => "select count(*) from document not indexed",
            Oo7Index::Title => "select count(title) from document indexed by document_title",
            Oo7Index::Part => "select count(*) from part not indexed",
            Oo7Index::Date => "select count(date) from part indexed by part_date",
        };
        let count = self.ask(count, [], |row| row.get::<_, i64>(0))?;
        Ok(count.map_or(0, i64::unsigned_abs))
    }

    fn module_design(&mut self, module: u32) -> Result<DesignValues, Oo7Error> {
        self.one(
            "a module",
            module,
            "select id, kind, date from module where id = ?1",
            design,
        )
    }

    fn top(&mut self, module: u32) -> Result<u32, Oo7Error> {
        self.value("a top assembly", module, "select top from module where id = ?1")
    }

    fn manual(&mut self, module: u32, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error> {
        self.one(
            "a manual",
            module,
            "select manual from module where id = ?1",
            |row| {
                read(row.get_ref(0)?.as_blob()?);
                Ok(())
            },
        )
    }

    fn manual_ends(&mut self, module: u32) -> Result<(u8, u8), Oo7Error> {
        let connection = &self.connection;
        let manual = connection.blob_open("main", "module", "manual", module.into(), true);
        let manual = manual.map_err(backend_error)?;
        let mut ends = [[0; 1]; 2];
        let last = manual.len().checked_sub(2).ok_or(damaged("a manual", module))?;
        for (end, at) in ends.iter_mut().zip([0, last]) {
            manual.read_at_exact(end, at).map_err(backend_error)?;
        }
        let [[front], [back]] = ends;
        Ok((front, back))
    }

    fn assembly(&mut self, assembly: u32) -> Result<AssemblyValues, Oo7Error> {
        let question = "select key / 2, kind, date from assembly where key = ?1";
        let design = self.one("an assembly", assembly, question, design)?;
        Ok(AssemblyValues {
            design,
            base: assembly % 2 == 1,
        })
    }

    fn parent(&mut self, assembly: u32) -> Result<Option<u32>, Oo7Error> {
        self.value(
            "an assembly",
            assembly,
            "select parent from assembly where key = ?1",
        )
    }

    fn module_of(&mut self, assembly: u32) -> Result<u32, Oo7Error> {
        self.value(
            "an assembly",
            assembly,
            "select module from assembly where key = ?1",
        )
    }

    fn children(&mut self, assembly: u32, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        let question = "select key from assembly where parent = ?1 order by key";
        self.all(question, [assembly], first, into)
    }

    fn components(&mut self, assembly: u32, how: CompositeUse, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        let question = "select composite from component where assembly = ?1 and how = ?2 order by place";
        self.all(question, [assembly, number_of(how)], first, into)
    }

    fn composite_design(&mut self, composite: u32) -> Result<DesignValues, Oo7Error> {
        let question = "select id, kind, date from composite where id = ?1";
        self.one("a composite", composite, question, design)
    }

    fn root_part(&mut self, composite: u32) -> Result<u32, Oo7Error> {
        self.value(
            "a root part",
            composite,
            "select root from composite where id = ?1",
        )
    }

    fn parts(&mut self, composite: u32, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        let question = "select id from part where composite = ?1 order by id";
        self.all(question, [composite], first, into)
    }

    fn documentation(&mut self, composite: u32) -> Result<u32, Oo7Error> {
        // Both have the same id, and each composite has one document.
        Ok(composite)
    }

    fn users(&mut self, composite: u32, how: CompositeUse, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        let question = "select assembly from component where composite = ?1 and how = ?2";
        self.all(question, [composite, number_of(how)], first, into)
    }

    fn document_id(&mut self, document: u32) -> Result<u32, Oo7Error> {
        self.value("a document", document, "select id from document where id = ?1")
    }

    fn title(&mut self, document: u32) -> Result<[u8; 40], Oo7Error> {
        self.value("a document", document, "select title from document where id = ?1")
    }

    fn described(&mut self, document: u32) -> Result<u32, Oo7Error> {
        self.value(
            "a document",
            document,
            "select composite from document where id = ?1",
        )
    }

    fn text(&mut self, document: u32, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error> {
        self.one(
            "a document",
            document,
            "select text from document where id = ?1",
            |row| {
                read(row.get_ref(0)?.as_blob()?);
                Ok(())
            },
        )
    }

    fn part_values(&mut self, part: u32) -> Result<PartValues, Oo7Error> {
        let question = "select id, kind, date, x, y, document from part where id = ?1";
        self.one("a part", part, question, |row| {
            Ok(PartValues {
                design: design(row)?,
                x: row.get(3)?,
                y: row.get(4)?,
                document: row.get(5)?,
            })
        })
    }

    fn composite_of(&mut self, part: u32) -> Result<u32, Oo7Error> {
        self.value("a part", part, "select composite from part where id = ?1")
    }

    fn targets(&mut self, part: u32, into: &mut Vec<(u32, u32)>) -> Result<(), Oo7Error> {
        let question = "select target from connection where source = ?1 order by place";
        self.all(
            question,
            [part],
            |row| first(row).map(|target| (target, target)),
            into,
        )
    }

    fn links(
        &mut self,
        part: u32,
        direction: LinkDirection,
        into: &mut Vec<PartLink<u32>>,
    ) -> Result<(), Oo7Error> {
        let question = match direction {
            LinkDirection::Out => {
                "select source, target, kind, length from connection where source = ?1 order by place"
            }
            LinkDirection::In => "select source, target, kind, length from connection where target = ?1",
        };
        let link = |row: &Row<'_>| {
            Ok(PartLink {
                from: row.get(0)?,
                to: row.get(1)?,
                connection: ConnectionValues {
                    kind: row.get(2)?,
                    length: row.get(3)?,
                },
            })
        };
        self.all(question, [part], link, into)
    }

    fn swap(&mut self, part: u32) -> Result<(), Oo7Error> {
        self.change_one(
            "a part",
            part,
            "update part set x = y, y = x where id = ?1",
            [part],
        )
    }

    fn set_date(&mut self, part: u32, date: u32) -> Result<(), Oo7Error> {
        self.change_one(
            "a part",
            part,
            "update part set date = ?2 where id = ?1",
            [part, date],
        )
    }

    fn set_text(&mut self, document: u32, text: &[u8]) -> Result<(), Oo7Error> {
        let change = "update document set text = ?2 where id = ?1";
        self.change_one("a document", document, change, params![document, text])
    }

    fn add_module(&mut self, design: DesignValues, manual: &[u8]) -> Result<u32, Oo7Error> {
        let DesignValues { id, kind, date } = design;
        self.change(
            "insert into module values (?1, ?2, ?3, null, ?4)",
            params![id, kind, date, manual],
        )?;
        Ok(id)
    }

    fn add_assembly(
        &mut self,
        module: u32,
        parent: Option<u32>,
        assembly: AssemblyValues,
    ) -> Result<u32, Oo7Error> {
        let key = key_of(assembly);
        let DesignValues { kind, date, .. } = assembly.design;
        let values = params![key, kind, date, module, parent];
        self.change("insert into assembly values (?1, ?2, ?3, ?4, ?5)", values)?;
        if parent.is_none() {
            self.change_one(
                "a module",
                module,
                "update module set top = ?2 where id = ?1",
                [module, key],
            )?;
        }
        Ok(key)
    }

    fn add_composite(&mut self, design: DesignValues, title: [u8; 40], text: &[u8]) -> Result<u32, Oo7Error> {
        let DesignValues { id, kind, date } = design;
        self.change(
            "insert into composite values (?1, ?2, ?3, null)",
            [id, kind, date],
        )?;
        let values = params![id, title, text];
        self.change("insert into document values (?1, ?1, ?2, ?3)", values)?;
        Ok(id)
    }

    fn add_part(&mut self, composite: u32, part: PartValues) -> Result<u32, Oo7Error> {
        let PartValues {
            design: DesignValues { id, kind, date },
            x,
            y,
            document,
        } = part;
        let values = [id, kind, date, x, y, document, composite];
        self.change("insert into part values (?1, ?2, ?3, ?4, ?5, ?6, ?7)", values)?;
        self.change(
            "update composite set root = ?2 where id = ?1 and root is null",
            [composite, id],
        )?;
        Ok(id)
    }

    fn connect(&mut self, link: PartLink<u32>) -> Result<(), Oo7Error> {
        let PartLink { from, to, connection } = link;
        let values = [from, to, connection.kind, connection.length];
        self.change(schema::CONNECT, values).map(drop)
    }

    fn add_use(&mut self, assembly: u32, how: CompositeUse, composite: u32) -> Result<(), Oo7Error> {
        let values = [assembly, number_of(how), composite];
        self.change(schema::ADD_USE, values).map(drop)
    }

    fn remove_composite(&mut self, composite: u32) -> Result<(), Oo7Error> {
        for statement in schema::REMOVE {
            self.change(statement, [composite])?;
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Oo7Error> {
        self.run("update state set value = 1 where name = 'complete'")
    }

    fn commit(mut self) -> Result<(), Oo7Error> {
        self.run("commit")?;
        self.ended = true;
        Ok(())
    }
}
