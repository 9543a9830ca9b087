//! Compares decisions with those kept in a file beside the tests. Replays, and readers of decisions of two releases, rely on a
//! version of the rules always deciding the same.

use eadt_schemas::fnv::Fnv1a;
use eadt_schemas::v1::{ControllerAction, Decision};

/// Text of decisions, one after another: changes in words, the rest as a checksum (FNV-1a). Figures have five digits, beyond
/// which platforms may differ.
pub struct DecisionTranscript {
    text: String,
    sum: Fnv1a,
    number: usize,
}

impl DecisionTranscript {
    pub fn new(name: &str) -> Self {
        Self { text: format!("{name}\n"), sum: Fnv1a::default(), number: 0 }
    }

    pub fn add(&mut self, decision: &Decision) {
        let to = &decision.to;
        let evidence: Vec<String> = decision.evidence.iter().map(|(name, value)| format!("{name} {value:.4e}")).collect();
        let line = format!(
            "{}: {} {:?} to {:?} replicas, {:?} %, {:?} W, {:?} MHz, {:?} of {:?}; {}; {}",
            self.number,
            decision.workload,
            decision.action,
            to.replicas,
            to.mps_thread_percentage,
            to.power_limit_watts.map(f64::round),
            to.sm_clock_mhz.map(f64::round),
            decision.validation,
            decision.concerns.is_some(),
            decision.reason,
            evidence.join(", ")
        );
        self.note(&line, decision.action != ControllerAction::Maintain);
    }

    pub fn note(&mut self, line: &str, in_words: bool) {
        self.sum.write(line.as_bytes());
        if in_words {
            self.text.extend(["  ", line, "\n"]);
        }
        self.number += 1;
    }

    pub fn text(self) -> String {
        format!("{}  sum of all {}: {:016x}\n", self.text, self.number, self.sum.finish())
    }
}

/// Compares with a file below `src`, or writes it if that is asked for.
pub fn assert_kept(file: &str, text: &str) {
    let place = format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("EADT_NEW_DECISIONS").is_some() {
        std::fs::write(&place, text).unwrap();
    }
    let before = std::fs::read_to_string(&place).unwrap();
    let differs = before.lines().zip(text.lines()).find(|(before, now)| before != now);
    assert!(
        before == text,
        "the rules decide otherwise than in {file}: where that is meant, raise their version and run this test once with EADT_NEW_DECISIONS=1\n{differs:#?}"
    );
}
