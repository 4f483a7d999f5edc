//! Gives the shared library the name that programs of the original ask the loader for, and keeps it loaded:
//! its threads run on whatever `dlclose` says.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librvm.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
