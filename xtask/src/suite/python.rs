//! The Python package's tests, one script, run as a test among the others: most of its time one core does
//! nothing.

use std::path::Path;

use super::{Kind, Test};

/// Name that stands for the crate and its program.
pub(super) const PROGRAM: &str = "python";

/// Path of the script in the checkout.
const SCRIPT: &str = "scripts/test-python.sh";

/// The script as a test.
pub(super) fn test(root: &Path) -> Test {
    Test {
        program: PROGRAM.to_string(),
        name: SCRIPT.to_string(),
        kind: Kind::Script,
        executable: root.join(SCRIPT),
        arguments: Vec::new(),
        directory: root.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    #[test]
    fn the_script_is_there() {
        let root = tree::root().expect("the tests run in the tree");
        assert!(test(&root).executable.is_file());
    }
}
