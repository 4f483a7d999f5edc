//! The texts of the benchmark: titles, documents, manuals, names of types.

/// Bytes of a title, padded with zeros.
pub(crate) const TITLE_BYTES: usize = 40;
/// Bytes of the name of a type.
pub(crate) const TYPE_BYTES: usize = 10;

/// The title of a composite's document.
pub(crate) fn document_title(composite: u32) -> [u8; TITLE_BYTES] {
    padded(&format!("Composite Part {composite:08}"))
}

/// The title of a module's manual.
pub(crate) fn manual_title(module: u32) -> [u8; TITLE_BYTES] {
    padded(&format!("Module {module:08}"))
}

/// The name of a type, by its number.
pub(crate) fn type_name(number: u32) -> [u8; TYPE_BYTES] {
    padded(&format!("type{number:03}"))
}

/// A document: a repeated sentence, and a zero.
pub(crate) fn document(composite: u32, bytes: u32) -> Vec<u8> {
    let sentence = format!("I am the documentation for composite part #{composite:08}.\n");
    repeated(&sentence, bytes)
}

/// A manual: a repeated sentence, and a zero.
pub(crate) fn manual(module: u32, bytes: u32) -> Vec<u8> {
    let sentence = format!("I am the manual for module #{module:08}.\n");
    repeated(&sentence, bytes)
}

fn repeated(sentence: &str, bytes: u32) -> Vec<u8> {
    let text = sentence.bytes().cycle().take(bytes as usize - 1);
    text.chain([0]).collect()
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_as_many_capital_is_as_the_papers_counts_need() {
        let count = |text: &[u8]| text.iter().filter(|byte| **byte == b'I').count();
        assert_eq!(count(&document(1, 2_000)), 38);
        assert_eq!(count(&manual(1, 100_000)), 2_632);
        assert_eq!(document(500, 2_000).len(), 2_000);
        assert_eq!(document(1, 2_000).last(), Some(&0));
    }
}
