//! Gives the shared library the name that programs of the original ask the loader for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librvm.so.1");
}
