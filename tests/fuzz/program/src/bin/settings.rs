#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| eadt_fuzz_program::settings(data));
