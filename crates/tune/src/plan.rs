//! Order in which settings are measured.

use std::str::FromStr;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Settings to measure: `1410,1305,1200`, or `705:1410:15` from, to and step.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepSettings(pub Vec<f64>);

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{text:?} are no settings; for example 1410,1305,1200 or 705:1410:15 (from, to, step), each above 0")]
pub struct InvalidSettings {
    text: String,
}

/// More settings than any device has are a slip of the step.
const MOST: f64 = 1000.0;

impl FromStr for SweepSettings {
    type Err = InvalidSettings;

    fn from_str(text: &str) -> Result<Self, InvalidSettings> {
        let wrong = || InvalidSettings { text: text.to_owned() };
        let number = |part: &str| part.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0).ok_or_else(wrong);
        let parts: Vec<&str> = text.split(':').collect();
        let mut settings: Vec<f64> = match parts.as_slice() {
            [from, to, step] => {
                let (from, to, step) = (number(from)?, number(to)?, number(step)?);
                if from > to || (to - from) / step > MOST {
                    return Err(wrong());
                }
                // From the top: the highest setting is the reference and must be there.
                let count = ((to - from) / step + 1e-9).floor() as u32;
                (0..=count).map(|i| to - step * f64::from(i)).collect()
            }
            [list] => list.split(',').map(number).collect::<Result<_, _>>()?,
            _ => return Err(wrong()),
        };
        settings.sort_by(|a, b| b.total_cmp(a));
        settings.dedup();
        Ok(Self(settings))
    }
}

/// One run to make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepStep {
    pub setting: f64,
    /// Number of the run, from 1; 0 is the cold run, whose figures are discarded.
    pub run: u32,
}

/// Returns a cold run at the highest setting, then `runs` rounds of all settings, each in a random order of its own. So drifts
/// with time (temperature, other tenants) affect no setting in particular.
pub fn plan(settings: &SweepSettings, runs: u32, seed: u64) -> Vec<SweepStep> {
    let Some(&highest) = settings.0.first() else { return Vec::new() };
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut steps = vec![SweepStep { setting: highest, run: 0 }];
    for run in 1..=runs {
        let mut order = settings.0.clone();
        for last in (1..order.len()).rev() {
            let other = ((u128::from(random.next_u64()) * (last as u128 + 1)) >> 64) as usize;
            order.swap(last, other);
        }
        steps.extend(order.into_iter().map(|setting| SweepStep { setting, run }));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_lists_or_ranges() {
        let settings = |text: &str| text.parse::<SweepSettings>().map(|settings| settings.0);
        assert_eq!(settings("1200,1410, 1305,1410").unwrap(), [1410.0, 1305.0, 1200.0]);
        assert_eq!(settings("1000:1100:40").unwrap(), [1100.0, 1060.0, 1020.0], "the highest is always there");
        for text in ["", "a", "1:2", "2:1:1", "1:2:0", "-5", "1:1e9:1", "1,,2"] {
            assert!(settings(text).unwrap_err().to_string().contains("1410,1305,1200"), "{text}");
        }
    }

    #[test]
    fn every_setting_is_run_as_often_in_an_order_that_the_seed_gives() {
        let settings: SweepSettings = "100:250:25".parse().unwrap();
        let steps = plan(&settings, 3, 7);
        assert_eq!(steps[0], SweepStep { setting: 250.0, run: 0 });
        assert_eq!(steps.len(), 1 + 3 * 7);
        for run in 1..=3 {
            let mut round: Vec<f64> = steps.iter().filter(|step| step.run == run).map(|step| step.setting).collect();
            assert_ne!(round, settings.0, "shuffled");
            round.sort_by(|a, b| b.total_cmp(a));
            assert_eq!(round, settings.0);
        }
        assert_eq!(steps, plan(&settings, 3, 7));
        assert_ne!(steps, plan(&settings, 3, 8));
    }
}
