//! Parameters of a StorageClass, or options of `docker volume create`: the flags of `netram volume create`.

use std::collections::BTreeMap;

use crate::refusal::VolumeRefusal;

/// Parameters with a value, and their flags.
const VALUES: [(&str, &str); 9] = [
    ("lenders", "--lender"),
    ("members", "--members"),
    ("rule", "--rule"),
    ("domain", "--domain"),
    ("patience", "--patience"),
    ("flush", "--flush"),
    ("journalSize", "--journal-size"),
    ("keyFile", "--key-file"),
    ("dataLender", "--data-lender"),
];
/// Parameters that are `true` or `false`, and their flags.
const SWITCHES: [(&str, &str); 2] = [("insecure", "--insecure"), ("oneDomain", "--one-domain")];
/// Parameter with the file system that the volume gets.
pub(crate) const FILE_SYSTEM: &str = "fsType";
/// Beginning of what Kubernetes adds by itself.
const OF_KUBERNETES: &str = "csi.storage.k8s.io/";

/// Parameters of a new volume, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeClass {
    /// The parameters as they were given.
    pub given: BTreeMap<String, String>,
    /// Flags of `netram volume create`.
    pub flags: Vec<String>,
    /// Whether a data lender keeps a copy.
    pub has_data_lender: bool,
}

impl VolumeClass {
    /// Checks parameters.
    ///
    /// # Errors
    ///
    /// A parameter is unknown, or a switch is neither `true` nor `false`.
    pub(crate) fn new(
        given: impl IntoIterator<Item = (String, String)>,
    ) -> Result<VolumeClass, VolumeRefusal> {
        let ours = |(key, _): &(String, String)| !key.starts_with(OF_KUBERNETES);
        let given: BTreeMap<String, String> = given.into_iter().filter(ours).collect();
        let mut flags = Vec::new();
        for (key, value) in &given {
            let of = |table: &[(&str, &'static str)]| {
                let found = table.iter().find(|(name, _)| name == key);
                found.map(|(_, flag)| *flag)
            };
            match (of(&VALUES), of(&SWITCHES), value.as_str()) {
                (Some("--lender"), ..) => {
                    let lenders = value.split(',').map(str::trim).filter(|one| !one.is_empty());
                    flags.extend(lenders.map(|one| format!("--lender={one}")));
                }
                (Some(flag), ..) => flags.push(format!("{flag}={value}")),
                (_, Some(flag), "true") => flags.push(flag.to_owned()),
                (_, Some(_), "false") => (),
                (_, Some(_), other) => {
                    let sentence = format!("parameter {key} is `true` or `false`, and not `{other}`");
                    return Err(VolumeRefusal::Invalid(sentence));
                }
                (None, None, _) if key == FILE_SYSTEM => (),
                (None, None, _) => return Err(unknown(key)),
            }
        }
        Ok(VolumeClass {
            has_data_lender: given.contains_key("dataLender"),
            given,
            flags,
        })
    }
}

fn unknown(key: &str) -> VolumeRefusal {
    let known = VALUES.iter().chain(&SWITCHES).map(|(name, _)| *name);
    let known: Vec<&str> = known.chain([FILE_SYSTEM]).collect();
    VolumeRefusal::Invalid(format!(
        "there is no parameter {key}; there are {}",
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(given: &[(&str, &str)]) -> Result<VolumeClass, VolumeRefusal> {
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        VolumeClass::new(given.iter().map(text))
    }

    #[test]
    fn parameters_are_the_flags_of_the_command() {
        let class = class(&[
            ("csi.storage.k8s.io/pv/name", "x"),
            ("lenders", "tcp://a:1, tcp://b:1"),
            ("oneDomain", "true"),
            ("insecure", "false"),
            ("rule", "--json"),
        ]);
        assert_eq!(
            class.unwrap().flags,
            [
                "--lender=tcp://a:1",
                "--lender=tcp://b:1",
                "--one-domain",
                "--rule=--json"
            ]
        );
    }

    #[test]
    fn unknown_parameters_are_refused_by_name() {
        let said = class(&[("replicas", "2")]).unwrap_err().to_string();
        assert!(said.contains("no parameter replicas"), "{said}");
        assert!(said.contains("members"), "{said}");
        assert!(class(&[("insecure", "yes")]).is_err());
    }
}
