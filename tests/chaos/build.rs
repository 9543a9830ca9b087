//! Passes to the harness how far it and the services in it were optimised: figures list it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!(
        "cargo::rustc-env=EADT_CHAOS_OPT_LEVEL={}",
        std::env::var("OPT_LEVEL").expect("cargo sets the level for a build script")
    );
}
