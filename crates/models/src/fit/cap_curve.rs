//! Models throughput against power: the cost of a power cap.

use serde::{Deserialize, Serialize};

use super::{FitError, FitQuality};

/// Throughput at a power.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CapPoint {
    /// Mean power in watts, or the cap.
    pub watts: f64,
    /// Throughput in any unit, the same for all points.
    pub throughput: f64,
}

/// Throughput = a·P^b. With b < 1 it has no peak of throughput per watt: less power is always better, which no board does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PowerLaw {
    pub a: f64,
    pub b: f64,
    /// R² in ln-ln space, in which the law is fitted.
    pub r_squared: Option<f64>,
    pub mape_ratio: f64,
}

/// Throughput = a·(P − P0)^b: P0 watts are drawn before any work is done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OffsetPowerLaw {
    pub a: f64,
    pub b: f64,
    pub offset_watts: f64,
    /// R² in ln-ln space, in which the law is fitted.
    pub r_squared: Option<f64>,
    pub mape_ratio: f64,
    /// P0 / (1 − b): where throughput per watt is highest; `None` if it has no peak (b ≥ 1), or none above 0 W.
    pub peak_watts: Option<f64>,
    /// The peak lies where it was measured.
    pub peak_measured: bool,
}

/// Whether the fits carry information about other powers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "reason")]
pub enum CapCurveVerdict {
    Informative,
    /// The law carries no information here, and why.
    NoInformation(String),
}

/// Both laws, and their errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapCurve {
    pub power_law: PowerLaw,
    pub offset_power_law: OffsetPowerLaw,
    #[serde(flatten)]
    pub verdict: CapCurveVerdict,
    /// Lowest and highest power that was measured.
    pub watts_range: [f64; 2],
    pub count: usize,
}

/// Below this, power explains less of the throughput than everything else does.
const R_SQUARED_MIN: f64 = 0.5;
/// Changes of throughput below this part are noise.
const SPREAD_MIN: f64 = 0.03;

impl CapCurve {
    /// Fits both laws by least squares in ln-ln space; needs three different powers.
    pub fn fit(points: &[CapPoint]) -> Result<Self, FitError> {
        for (index, point) in points.iter().enumerate() {
            for (what, value) in [("power in watts", point.watts), ("throughput", point.throughput)] {
                if !value.is_finite() || value <= 0.0 {
                    return Err(FitError::Value { index, what, value, expected: "finite and above 0" });
                }
            }
        }
        let mut distinct: Vec<f64> = points.iter().map(|point| point.watts).collect();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        let (Some(&low), Some(&high)) = (distinct.first(), distinct.last()) else {
            return Err(FitError::TooFew { what: "power", found: 0, needed: 3 });
        };
        if distinct.len() < 3 {
            return Err(FitError::TooFew { what: "power", found: distinct.len(), needed: 3 });
        }
        let plain = log_fit(points, 0.0);
        let offset = least_offset(points, low);
        let shifted = log_fit(points, offset);
        let peak_watts = (shifted.b < 1.0 && offset > 0.0).then(|| offset / (1.0 - shifted.b));
        let power_law = PowerLaw { a: plain.a, b: plain.b, r_squared: plain.r_squared, mape_ratio: plain.mape(points, 0.0) };
        Ok(Self {
            verdict: verdict(points, &power_law, shifted.r_squared),
            offset_power_law: OffsetPowerLaw {
                a: shifted.a,
                b: shifted.b,
                offset_watts: offset,
                r_squared: shifted.r_squared,
                mape_ratio: shifted.mape(points, offset),
                peak_watts,
                peak_measured: peak_watts.is_some_and(|peak| (low..=high).contains(&peak)),
            },
            power_law,
            watts_range: [low, high],
            count: points.len(),
        })
    }

    /// Returns the throughput at a power by the offset law; `None` outside the measured range and if there is no information.
    pub fn throughput(&self, watts: f64) -> Option<f64> {
        let [low, high] = self.watts_range;
        let law = &self.offset_power_law;
        (self.verdict == CapCurveVerdict::Informative && (low..=high).contains(&watts))
            .then(|| law.a * (watts - law.offset_watts).powf(law.b))
    }
}

#[derive(Debug, Clone, Copy)]
struct LogFit {
    a: f64,
    b: f64,
    squares: f64,
    r_squared: Option<f64>,
}

impl LogFit {
    fn mape(&self, points: &[CapPoint], offset: f64) -> f64 {
        let predicted: Vec<f64> = points.iter().map(|point| self.a * (point.watts - offset).powf(self.b)).collect();
        let observed: Vec<f64> = points.iter().map(|point| point.throughput).collect();
        FitQuality::of(&observed, &predicted).map_or(0.0, |quality| quality.mape_ratio)
    }
}

fn log_fit(points: &[CapPoint], offset: f64) -> LogFit {
    let n = points.len() as f64;
    let xs: Vec<f64> = points.iter().map(|point| (point.watts - offset).ln()).collect();
    let ys: Vec<f64> = points.iter().map(|point| point.throughput.ln()).collect();
    let (x_mean, y_mean) = (xs.iter().sum::<f64>() / n, ys.iter().sum::<f64>() / n);
    let sxx: f64 = xs.iter().map(|x| (x - x_mean).powi(2)).sum();
    let syy: f64 = ys.iter().map(|y| (y - y_mean).powi(2)).sum();
    let sxy: f64 = xs.iter().zip(&ys).map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    let b = if sxx > 0.0 { sxy / sxx } else { 0.0 };
    let squares = (syy - b * sxy).max(0.0);
    LogFit { a: (y_mean - b * x_mean).exp(), b, squares, r_squared: (syy > 1e-20).then(|| 1.0 - squares / syy) }
}

/// Returns the P0 below the lowest power with the least squares: a scan, for there may be several minima, then golden sections.
fn least_offset(points: &[CapPoint], low: f64) -> f64 {
    const STEPS: u32 = 100;
    let most = 0.98 * low;
    let at = |step: u32| most * f64::from(step) / f64::from(STEPS);
    let squares = |offset: f64| log_fit(points, offset).squares;
    let best = (0..=STEPS).min_by(|a, b| squares(at(*a)).total_cmp(&squares(at(*b)))).unwrap_or(0);
    let (mut from, mut to) = (at(best.saturating_sub(1)), at((best + 1).min(STEPS)));
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    while to - from > 1e-6 * low {
        let (left, right) = (to - golden * (to - from), from + golden * (to - from));
        if squares(left) < squares(right) {
            to = right;
        } else {
            from = left;
        }
    }
    let refined = f64::midpoint(from, to);
    // The plain law wins ties: an offset must explain something.
    if squares(refined) < squares(0.0) * (1.0 - 1e-9) { refined } else { 0.0 }
}

fn verdict(points: &[CapPoint], plain: &PowerLaw, shifted: Option<f64>) -> CapCurveVerdict {
    let (least, most) = points
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(least, most), point| (least.min(point.throughput), most.max(point.throughput)));
    let spread = most / least - 1.0;
    let no = |reason: String| CapCurveVerdict::NoInformation(reason);
    if spread < SPREAD_MIN {
        return no(format!(
            "throughput changes by {:.1} % only over the measured powers: the job waits for something else (input, host, network)",
            100.0 * spread
        ));
    }
    let best = plain.r_squared.into_iter().chain(shifted).fold(0.0_f64, f64::max);
    // The law with an offset has one parameter more, which a few points always reward: both must explain.
    if plain.r_squared.is_none_or(|r| r < R_SQUARED_MIN) {
        return no(format!(
            "power explains {:.0} % of the throughput's variance (with an offset {:.0} %): the job waits for something else \
             (input, host, network), or the measurement is too noisy",
            100.0 * plain.r_squared.unwrap_or(0.0),
            100.0 * best
        ));
    }
    if plain.b <= 0.0 {
        return no("throughput falls with power: something else changed between the measurements".to_owned());
    }
    CapCurveVerdict::Informative
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(law: impl Fn(f64) -> f64) -> Vec<CapPoint> {
        (4..=10).map(|i| f64::from(i) * 25.0).map(|watts| CapPoint { watts, throughput: law(watts) }).collect()
    }

    #[test]
    fn finds_both_laws() {
        let plain = CapCurve::fit(&points(|p| 3.0 * p.powf(0.6))).unwrap();
        assert!((plain.power_law.b - 0.6).abs() < 1e-9 && (plain.power_law.a - 3.0).abs() < 1e-6, "{plain:?}");
        assert_eq!(plain.offset_power_law.peak_watts, None, "{plain:?}");
        let offset = CapCurve::fit(&points(|p| 3.0 * (p - 60.0).powf(0.5))).unwrap();
        let law = offset.offset_power_law;
        assert!((law.offset_watts - 60.0).abs() < 0.01 && (law.b - 0.5).abs() < 1e-3, "{law:?}");
        assert!((law.peak_watts.unwrap() - 120.0).abs() < 0.1 && law.peak_measured);
        assert!(law.r_squared.unwrap() > offset.power_law.r_squared.unwrap());
        // The peak is one: throughput per watt is lower on both sides of it.
        let per_watt = |watts: f64| offset.throughput(watts).unwrap() / watts;
        assert!(per_watt(120.0) > per_watt(110.0) && per_watt(120.0) > per_watt(130.0));
        assert_eq!(offset.throughput(300.0), None, "beyond what was measured");
    }

    #[test]
    fn reports_where_the_data_carry_nothing() {
        let flat = CapCurve::fit(&points(|p| 100.0 + 0.001 * p)).unwrap();
        assert!(matches!(&flat.verdict, CapCurveVerdict::NoInformation(reason) if reason.contains("waits")), "{flat:?}");
        assert_eq!(flat.throughput(150.0), None);
        let mut side = 1.0;
        let noisy = CapCurve::fit(
            &points(|_| 100.0)
                .into_iter()
                .map(|point| {
                    side = -side;
                    CapPoint { throughput: 100.0 + 10.0 * side, ..point }
                })
                .collect::<Vec<_>>(),
        )
        .unwrap();
        assert!(matches!(noisy.verdict, CapCurveVerdict::NoInformation(_)), "{noisy:?}");
        let falling = CapCurve::fit(&points(|p| 1000.0 / p)).unwrap();
        assert!(matches!(&falling.verdict, CapCurveVerdict::NoInformation(reason) if reason.contains("falls")), "{falling:?}");
    }

    #[test]
    fn impossible_points_are_named() {
        let mut with_zero = points(|p| p);
        with_zero[2].throughput = 0.0;
        assert!(CapCurve::fit(&with_zero).unwrap_err().to_string().starts_with("measurement 2: throughput is 0"));
        let two = &points(|p| p)[..2];
        assert_eq!(CapCurve::fit(two), Err(FitError::TooFew { what: "power", found: 2, needed: 3 }));
        assert!(CapCurve::fit(&[]).is_err());
    }
}
