//! Prints whether the promise named by the first argument is switched off in a build like this one.

fn main() {
    let promise = std::env::args().nth(1).unwrap_or_default();
    println!("switches {}, {promise} off {}", eadt_faults::SWITCHES, eadt_faults::is_off(&promise));
}
