//! Tells the harness how far it and the services in it were optimised: figures say so.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!(
        "cargo::rustc-env=EADT_CHAOS_OPT_LEVEL={}",
        std::env::var("OPT_LEVEL").expect("cargo tells a build script the level")
    );
}
