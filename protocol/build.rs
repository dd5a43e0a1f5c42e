//! Generates the executor protocol; protox compiles the .proto in Rust, so no protoc is needed.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["executor.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(true).compile_fds(files)?;
    Ok(())
}
