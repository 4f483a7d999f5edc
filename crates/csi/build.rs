//! Makes the messages and services of the CSI specification from its own file, `proto/csi.proto` (v1.13.0,
//! unchanged; Apache-2.0).

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/csi.proto");
    let compiled = protox::compile(["csi.proto"], ["proto"])?;
    // A method that the driver does not have is answered with UNIMPLEMENTED. Clients are for the tests.
    tonic_prost_build::configure()
        .generate_default_stubs(true)
        .build_transport(false)
        .compile_fds(compiled)?;
    Ok(())
}
