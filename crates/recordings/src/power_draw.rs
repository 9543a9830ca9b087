//! Boards that answer NVML's "power usage" with an average. Pure.
//!
//! `nvmlDeviceGetPowerUsage`, which `nvidia-smi` prints as `power.draw` and DCGM as `DCGM_FI_DEV_POWER_USAGE`, is an average over
//! one second on Ampere and later, GA100 apart. Up to Turing, and on GA100, it is the present value. NVML reports the
//! architecture; a recording has the product's name only.

/// Models of the boards up to Turing and of those with a GA100, without letters behind the number: `V100S` is `V100`, `A100X` is
/// `A100`.
const INSTANT_MODELS: [&str; 42] = [
    "A30", "A100", "A800", "GP100", "GV100", "K1", "K2", "RTX6000", "RTX8000", "K10", "K20", "K40", "K80", "M4", "M6", "M10",
    "M40", "M60", "MX110", "MX130", "MX150", "MX230", "MX250", "MX330", "MX350", "MX450", "MX550", "P4", "P6", "P40", "P100",
    "P102", "P104", "P106", "T4", "T400", "T500", "T550", "T600", "T1000", "T1200", "V100",
];
/// Product lines that ended with Turing.
const INSTANT_LINES: [&str; 6] = ["GT", "GTX", "NVS", "QUADRO", "TESLA", "TITAN"];
/// Architectures in names whose numbers earlier boards had, too.
const LATER_ARCHITECTURES: [&str; 2] = ["ADA", "BLACKWELL"];
/// Boards for mining up to Turing (`CMP 30HX`) and with a GA100 (`CMP 170HX`).
const INSTANT_CMP: [&str; 4] = ["30", "40", "50", "170"];

/// Returns true if the power draw that NVML gives for a board is an average over one second, by the product's name: on Ampere and
/// later except GA100. Unknown names are taken for boards to come, so true.
pub fn power_draw_is_average(model: &str) -> bool {
    let name = model.to_ascii_uppercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let has = |wanted: &[&str]| words.iter().any(|word| wanted.contains(word));
    let follows = |line: &str, is_model: &dyn Fn(&str) -> bool| words.windows(2).any(|pair| pair[0] == line && is_model(pair[1]));
    // `RTX A4000`, also with `Quadro` before it.
    let is_rtx_a = |word: &str| word.strip_prefix('A').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if has(&LATER_ARCHITECTURES) || follows("RTX", &is_rtx_a) {
        return true;
    }
    let is_turing_rtx = |word: &str| matches!(number(word), "2060" | "2070" | "2080");
    let is_instant = has(&INSTANT_LINES)
        || words.iter().any(|word| is_old_mobile(word))
        || words.iter().any(|word| INSTANT_MODELS.contains(&number(word)))
        || follows("CMP", &|word| INSTANT_CMP.contains(&number(word)))
        || follows("RTX", &is_turing_rtx);
    !is_instant
}

/// Returns true for `GeForce 840M`, `GeForce 940MX`.
fn is_old_mobile(word: &str) -> bool {
    let digits = word.strip_suffix("MX").or_else(|| word.strip_suffix('M'));
    digits.is_some_and(|digits| digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns a model without the letters behind its number.
fn number(word: &str) -> &str {
    word.trim_end_matches(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_by_name_whose_power_draw_is_an_average() {
        for (model, is_average) in [
            ("Tesla K80", false),
            ("Tesla M60", false),
            ("Tesla P100-PCIE-16GB", false),
            ("Tesla P4", false),
            ("Tesla V100-SXM2-16GB", false),
            ("Tesla V100S-PCIE-32GB", false),
            ("NVIDIA V100S", false),
            ("Quadro GV100", false),
            ("Tesla T4", false),
            ("NVIDIA T4G", false),
            ("NVIDIA T400", false),
            ("NVIDIA T400 4GB", false),
            ("NVIDIA T1000 8GB", false),
            ("NVIDIA T1200 Laptop GPU", false),
            ("NVIDIA TITAN RTX", false),
            ("NVIDIA TITAN V", false),
            ("GeForce GT 1030", false),
            ("NVIDIA GeForce GTX 1080 Ti", false),
            ("NVIDIA GeForce GTX 1660 SUPER", false),
            ("NVIDIA GeForce MX450", false),
            ("NVIDIA GeForce 940MX", false),
            ("GeForce 840M", false),
            ("NVS 810", false),
            ("GRID K1", false),
            ("GRID K2", false),
            ("GRID RTX6000-8Q", false),
            ("NVIDIA RTX6000-Ada-8Q", true),
            ("NVIDIA GeForce MX550", false),
            ("NVIDIA GeForce RTX 2080 Ti", false),
            ("NVIDIA GeForce RTX 2070 SUPER", false),
            ("Quadro RTX 6000", false),
            ("Quadro T2000 with Max-Q Design", false),
            ("NVIDIA CMP 30HX", false),
            ("NVIDIA CMP 170HX", false),
            ("P104-100", false),
            ("NVIDIA A100-SXM4-80GB", false),
            ("NVIDIA A100 80GB PCIe", false),
            ("NVIDIA A100-SXM-64GB", false),
            ("NVIDIA A100X", false),
            ("GRID A100D-8C", false),
            ("NVIDIA A800-SXM4-80GB", false),
            ("NVIDIA A30", false),
            ("NVIDIA A30X", false),
            ("NVIDIA A2", true),
            ("NVIDIA A10", true),
            ("NVIDIA A10G", true),
            ("NVIDIA A16", true),
            ("NVIDIA A40", true),
            ("NVIDIA CMP 90HX", true),
            ("NVIDIA GeForce MX570", true),
            ("NVIDIA GeForce RTX 2050", true),
            ("NVIDIA GeForce RTX 3090", true),
            ("NVIDIA GeForce RTX 4090", true),
            ("NVIDIA GeForce RTX 5090", true),
            ("NVIDIA RTX A400", true),
            ("NVIDIA RTX A1000", true),
            ("NVIDIA RTX A2000", true),
            ("NVIDIA RTX A3000 Laptop GPU", true),
            ("Quadro RTX A6000", true),
            ("NVIDIA RTX 2000 Ada Generation", true),
            ("NVIDIA RTX 2000E Ada Generation", true),
            ("NVIDIA RTX 6000 Ada Generation", true),
            ("NVIDIA RTX PRO 2000 Blackwell", true),
            ("NVIDIA L4", true),
            ("NVIDIA L40S", true),
            ("NVIDIA H100 PCIe", true),
            ("NVIDIA H100 80GB HBM3", true),
            ("NVIDIA H800", true),
            ("NVIDIA H20", true),
            ("NVIDIA GH200 480GB", true),
            ("NVIDIA B200", true),
            ("NVIDIA GB200", true),
            ("", true),
        ] {
            assert_eq!(power_draw_is_average(model), is_average, "{model}");
        }
    }
}
