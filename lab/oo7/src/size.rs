//! The databases: numbers and sizes of objects.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Number of assemblies below an assembly.
pub const ASSEMBLIES_PER_ASSEMBLY: u32 = 3;
/// Number of composites that a base assembly uses, for each kind of use.
pub const COMPOSITES_PER_ASSEMBLY: u32 = 3;
/// Number of types of design objects.
pub const TYPES: u32 = 10;
/// The first and last build date of modules, assemblies and atomic parts.
pub const DATES: (u32, u32) = (1000, 1999);
/// Build dates of composites that are older than everything else.
pub const OLD_DATES: (u32, u32) = (0, 999);
/// Build dates of composites that are younger than everything else.
pub const YOUNG_DATES: (u32, u32) = (2000, 2999);
/// One composite in this many is young.
pub const YOUNG_EVERY: u32 = 10;
/// Coordinates, and lengths of connections, are below this.
pub const COORDINATE_MAX: u32 = 100_000;
/// Number of changes of each part by the updates marked "c".
pub const REPEATS: u32 = 4;
/// Number of atomic parts that Q1 looks up, and of titles that Q4 looks up.
pub const LOOKUPS: u32 = 10;
/// Number of composites that a structural insertion adds.
pub const NEW_COMPOSITES: u32 = 10;
/// Number of base assemblies that use each of them.
pub const NEW_USES: u32 = 1;

/// The size of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatabaseSize {
    /// Not in the paper; its size is that of later ports.
    Tiny,
    /// 10,000 atomic parts: some 5 MB.
    Small,
    /// 100,000 atomic parts.
    Medium,
    /// Ten modules, a million atomic parts.
    Large,
}

/// Numbers and sizes of a database's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oo7Parameters {
    /// The size class.
    pub size: DatabaseSize,
    /// Number of atomic parts of a composite.
    pub parts: u32,
    /// Number of connections that leave an atomic part.
    pub connections: u32,
    /// Bytes of a document, including its end mark.
    pub document_bytes: u32,
    /// Bytes of a manual, including its end mark.
    pub manual_bytes: u32,
    /// Number of composites of a module.
    pub composites: u32,
    /// Number of levels in the tree of assemblies, including that of the base assemblies.
    pub levels: u32,
    /// Number of modules.
    pub modules: u32,
}

impl Oo7Parameters {
    /// The parameters of the benchmark. `connections` is 3, 6 or 9.
    pub fn of(size: DatabaseSize, connections: u32) -> Oo7Parameters {
        let (parts, document_bytes, manual_bytes, composites, modules) = match size {
            DatabaseSize::Tiny => (20, 20, 1_000, 50, 1),
            DatabaseSize::Small => (20, 2_000, 100_000, 500, 1),
            DatabaseSize::Medium => (200, 20_000, 1_000_000, 500, 1),
            DatabaseSize::Large => (200, 20_000, 1_000_000, 500, 10),
        };
        Oo7Parameters {
            size,
            parts,
            connections,
            document_bytes,
            manual_bytes,
            composites,
            levels: 7,
            modules,
        }
    }

    /// The same with another number of modules: one for each user of the mix.
    pub fn with_modules(self, modules: u32) -> Oo7Parameters {
        Oo7Parameters { modules, ..self }
    }

    /// Number of composites that the build creates.
    pub fn all_composites(&self) -> u32 {
        self.composites * self.modules
    }

    /// The module that a composite belongs to, whether built or inserted later.
    pub fn module_of(&self, composite: u32) -> u32 {
        module_of(composite, self.composites, self.modules)
    }

    /// Number of atomic parts that the build creates.
    pub fn all_parts(&self) -> u32 {
        self.all_composites() * self.parts
    }

    /// Number of base assemblies of a module.
    pub fn base_assemblies(&self) -> u32 {
        ASSEMBLIES_PER_ASSEMBLY.pow(self.levels - 1)
    }

    /// Number of base assemblies of the database.
    pub fn all_base_assemblies(&self) -> u32 {
        self.base_assemblies() * self.modules
    }

    /// Number of complex assemblies of the database.
    pub fn all_complex_assemblies(&self) -> u32 {
        (self.base_assemblies() - 1) / (ASSEMBLIES_PER_ASSEMBLY - 1) * self.modules
    }

    /// Number of private uses of composites, which a traversal visits.
    pub fn uses(&self) -> u32 {
        self.base_assemblies() * COMPOSITES_PER_ASSEMBLY
    }

    /// Bytes under each lock of a shared region whose modules have their own heaps: twice the size of a
    /// module, or of all indexes.
    pub fn lock_span_bytes(&self) -> u64 {
        let module = self.with_modules(1).heap_bytes();
        let nodes = 2 * self.all_parts() + 3 * self.all_composites() + self.all_base_assemblies();
        module.max((u64::from(nodes) * 96 + (1 << 20)).next_multiple_of(4096))
    }

    /// Bytes of a persistent heap for the database: twice its size, with room for structural changes and for
    /// documents that move.
    pub fn heap_bytes(&self) -> u64 {
        let connections = u64::from(self.connections);
        let part = 88 + 40 * connections + 32 * connections + 2 * 48;
        let composite = 1_000 + u64::from(self.document_bytes) * 9 / 8 + u64::from(self.parts) * (part + 8);
        let assemblies = u64::from(self.all_base_assemblies()) * 400;
        let manuals = u64::from(self.modules) * (u64::from(self.manual_bytes) + 32_768);
        let all = u64::from(self.all_composites()) * composite + assemblies + manuals;
        (all * 3 / 2 + (4 << 20)).next_multiple_of(4096)
    }
}

/// The module of a composite, with `composites` in each module.
pub(crate) fn module_of(composite: u32, composites: u32, modules: u32) -> u32 {
    composite.saturating_sub(1) / composites % modules + 1
}

/// As in "small-3": the size and the connections of a part.
impl fmt::Display for Oo7Parameters {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.size {
            DatabaseSize::Tiny => "tiny",
            DatabaseSize::Small => "small",
            DatabaseSize::Medium => "medium",
            DatabaseSize::Large => "large",
        };
        write!(out, "{size}-{}", self.connections)
    }
}

impl FromStr for Oo7Parameters {
    type Err = String;

    fn from_str(text: &str) -> Result<Oo7Parameters, String> {
        let unknown =
            || format!("`{text}` is no database; choose for example tiny-3, small-3, medium-9, large-6");
        let (size, connections) = text.split_once('-').ok_or_else(unknown)?;
        let size = match size {
            "tiny" => DatabaseSize::Tiny,
            "small" => DatabaseSize::Small,
            "medium" => DatabaseSize::Medium,
            "large" => DatabaseSize::Large,
            _ => return Err(unknown()),
        };
        match connections {
            "3" => Ok(Oo7Parameters::of(size, 3)),
            "6" => Ok(Oo7Parameters::of(size, 6)),
            "9" => Ok(Oo7Parameters::of(size, 9)),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_database_has_the_papers_numbers() {
        let small: Oo7Parameters = "small-3".parse().unwrap();
        assert_eq!(small.all_parts(), 10_000);
        assert_eq!(small.all_complex_assemblies(), 364);
        assert_eq!(small.all_base_assemblies(), 729);
        assert_eq!(small.uses(), 2_187);
        assert_eq!(small.to_string(), "small-3");
    }

    #[test]
    fn other_names_are_refused() {
        for name in ["", "small", "small-4", "huge-3", "small-3-3", "Small-3"] {
            assert!(
                name.parse::<Oo7Parameters>().unwrap_err().contains("tiny-3"),
                "{name}"
            );
        }
    }
}
