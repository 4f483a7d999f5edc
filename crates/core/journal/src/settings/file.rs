//! A settings file: TOML with one table for each owner, so that each crate reads its own and an unknown key
//! is an error.

use std::io;
use std::path::{Path, PathBuf};

use netram_process::files;
use serde::de::DeserializeOwned;

use super::SettingsError;

/// Maximum bytes of a settings file, which a person writes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The tables of a settings file that nobody has taken yet.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    path: PathBuf,
    tables: toml::Table,
    /// Names of tables that were asked for, for the error about an unknown one.
    known: Vec<&'static str>,
}

impl SettingsFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Unreadable`] if it cannot be read; [`SettingsError::File`] if it is not TOML.
    pub fn read(path: &Path) -> Result<SettingsFile, SettingsError> {
        let unreadable = |source| SettingsError::Unreadable {
            path: path.to_path_buf(),
            source,
        };
        // The file says which key is read and where records go: root takes it from nobody else.
        let bytes = files::read(path, FILE_BYTES_MAX).map_err(|refusal| unreadable(refusal.into()))?;
        let text = String::from_utf8(bytes)
            .map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error())))?;
        SettingsFile::parse(&text, path)
    }

    /// Parses `text`, the content of a file that is or will be at `path`.
    ///
    /// # Errors
    ///
    /// [`SettingsError::File`] if it is not TOML.
    pub fn parse(text: &str, path: &Path) -> Result<SettingsFile, SettingsError> {
        let tables = toml::from_str(text).map_err(|error| invalid(path, &error))?;
        Ok(SettingsFile {
            path: path.to_path_buf(),
            tables,
            known: Vec::new(),
        })
    }

    /// The directory that relative paths in the file start from.
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Takes the table `name` out, as its owner sees it. A missing table is an empty one.
    ///
    /// # Errors
    ///
    /// [`SettingsError::File`] if the table has an unknown key or a value of the wrong type.
    pub fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<T, SettingsError> {
        self.known.push(name);
        let table = match self.tables.remove(name) {
            None => toml::Table::new(),
            Some(toml::Value::Table(table)) => table,
            Some(_) => return Err(self.error(format!("`{name}` must be a table, written [{name}]"))),
        };
        table
            .try_into()
            .map_err(|error: toml::de::Error| self.error(format!("[{name}] {}", error.message())))
    }

    /// Checks that every table was taken.
    ///
    /// # Errors
    ///
    /// [`SettingsError::File`] names the first table or key that has no owner.
    pub fn finish(&self) -> Result<(), SettingsError> {
        let tables: Vec<String> = self.known.iter().map(|name| format!("[{name}]")).collect();
        let tables = tables.join(", ");
        match self.tables.iter().next() {
            None => Ok(()),
            Some((name, toml::Value::Table(_))) => {
                Err(self.error(format!("unknown table [{name}]; this file may have {tables}")))
            }
            Some((key, _)) => Err(self.error(format!(
                "the key `{key}` is in no table; move it into the table that it belongs to: {tables}"
            ))),
        }
    }

    fn error(&self, reason: String) -> SettingsError {
        SettingsError::File {
            path: self.path.clone(),
            reason,
        }
    }
}

fn invalid(path: &Path, error: &toml::de::Error) -> SettingsError {
    SettingsError::File {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> SettingsFile {
        SettingsFile::parse(text, Path::new("/srv/netram.toml")).unwrap()
    }

    #[test]
    fn each_owner_takes_its_table_and_nothing_may_be_left() {
        let mut file = of("[journal]\nmembers = 1\n[rvm]\nspool = 7\n");
        let journal: toml::Table = file.take("journal").unwrap();
        assert_eq!(journal["members"].as_integer(), Some(1));
        let left = file.finish().unwrap_err().to_string();
        assert!(left.contains("[rvm]") && left.contains("[journal]"), "{left}");
        let rvm: toml::Table = file.take("rvm").unwrap();
        assert_eq!(rvm["spool"].as_integer(), Some(7));
        file.finish().unwrap();
        let none: toml::Table = file.take("volume").unwrap();
        assert!(none.is_empty(), "a missing table is an empty one");
    }

    #[test]
    fn a_key_outside_of_every_table_is_named_with_the_tables() {
        let mut file = of("members = 1\n");
        let _: toml::Table = file.take("journal").unwrap();
        let said = file.finish().unwrap_err().to_string();
        assert!(said.contains("`members`") && said.contains("[journal]"), "{said}");
        let said = of("journal = 1")
            .take::<toml::Table>("journal")
            .unwrap_err()
            .to_string();
        assert!(said.contains("[journal]"), "{said}");
    }
}
