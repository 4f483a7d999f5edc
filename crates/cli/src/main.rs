//! netram
fn main() {}
