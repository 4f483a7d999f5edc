//! Sets the shared library's soname to the one that programs of the original request, and makes `dlclose`
//! keep it loaded, because its threads continue to run.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librvm.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
