//! Names of precisions, as frameworks write them, to those of events.

/// Names of one precision: that of events first, then those of `PyTorch`, Lightning, Accelerate and `DeepSpeed`.
const NAMES: [(&str, &[&str]); 5] = [
    ("fp32", &["float32", "float", "32", "32-true", "single", "no"]),
    ("tf32", &["tensorfloat32"]),
    ("fp16", &["float16", "half", "16", "16-mixed", "16-true", "fp16-mixed"]),
    ("bf16", &["bfloat16", "bf16-mixed", "bf16-true"]),
    ("fp8", &["float8", "float8_e4m3fn", "float8_e5m2", "transformer-engine", "transformer-engine-float16", "fp8-mixed"]),
];

/// Returns the name of a precision in events; an unknown one is only changed to lower case.
pub fn event_name(reported: &str) -> String {
    let lower = reported.trim().to_ascii_lowercase();
    let plain = lower.strip_prefix("torch.").unwrap_or(&lower);
    let known = NAMES.iter().find(|(name, others)| *name == plain || others.contains(&plain));
    known.map_or_else(|| plain.to_owned(), |(name, _)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frameworks_name_is_that_of_events() {
        for (given, name) in [
            ("BF16", "bf16"),
            ("bf16-mixed", "bf16"),
            ("torch.bfloat16", "bf16"),
            ("16-mixed", "fp16"),
            ("torch.float16", "fp16"),
            ("no", "fp32"),
            ("32-true", "fp32"),
            ("transformer-engine", "fp8"),
            ("tf32", "tf32"),
            ("Int4", "int4"),
            ("", ""),
        ] {
            assert_eq!(event_name(given), name, "{given}");
        }
    }
}
