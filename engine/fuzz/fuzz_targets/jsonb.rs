#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| heapscan_fuzz::jsonb(data));
