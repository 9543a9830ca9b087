//! Computes the share of each workload in a shared GPU from the best available signal. Pure.
//!
//! The signals, best first: slices of MIG instances; time in which each process used the SMs; thread percentages of MPS
//! clients; none. A signal is used only if every tenant has it: shares by different measures cannot be added. Shares never sum
//! above 1. The rest is reported as unattributed, never given to a workload.

use eadt_schemas::v1::ShareMethod;

use crate::tenancy::BoardTenant;

/// Signals of one workload on a device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ShareSignals {
    /// `namespace/name`.
    pub workload: String,
    /// Share of time in which its processes used the SMs, 0 to 1.
    pub utilization_ratio: Option<f64>,
    /// Sum of the thread percentages of its MPS clients.
    pub mps_thread_percentage: Option<f64>,
    /// Slices of its MIG instances; a part of them if it shares an instance.
    pub mig_slices: Option<f64>,
}

/// Figures of the device as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DeviceTotals {
    /// Utilization of processes that belong to no tenant, 0 to 1.
    pub others_utilization_ratio: f64,
    /// Slices of the whole GPU in MIG mode.
    pub mig_slices: Option<u32>,
}

/// Attributes a device: one tenant for each workload, in the order in which they were given. A single tenant of a GPU that
/// is not cut into instances has all of it.
pub fn attribute(claims: &[ShareSignals], whole: DeviceTotals) -> Vec<BoardTenant> {
    let merged = merge(claims);
    let all = |shares: Vec<f64>, method| -> Vec<BoardTenant> {
        let tenant = |(claim, share): (&ShareSignals, f64)| BoardTenant {
            workload: claim.workload.clone(),
            share: Some(share.clamp(0.0, 1.0)),
            method: Some(method),
        };
        merged.iter().zip(shares).map(tenant).collect()
    };
    if let (Some(total), Some(slices)) = (whole.mig_slices, every(&merged, |claim| claim.mig_slices)) {
        let total = f64::from(total).max(slices.iter().sum());
        if total > 0.0 {
            return all(parts(&slices, total), ShareMethod::MigSlices);
        }
    }
    if let [only] = &merged[..] {
        return vec![BoardTenant { workload: only.workload.clone(), share: None, method: None }];
    }
    // If no process computes, utilisation does not show which workload holds the idle GPU.
    if let Some(used) = every(&merged, |claim| claim.utilization_ratio.filter(|ratio| *ratio >= 0.0)) {
        let total = used.iter().sum::<f64>() + whole.others_utilization_ratio.max(0.0);
        if total > 0.0 {
            return all(parts(&used, total), ShareMethod::ProcessUtilization);
        }
    }
    if let Some(percentages) = every(&merged, |claim| claim.mps_thread_percentage.filter(|percentage| *percentage > 0.0)) {
        let total: f64 = percentages.iter().sum();
        return all(parts(&percentages, total.max(100.0)), ShareMethod::MpsPercentage);
    }
    let equal = 1.0 / merged.len().max(1) as f64;
    all(vec![equal; merged.len()], ShareMethod::Equal)
}

/// Returns a signal that every claim has.
fn every(claims: &[ShareSignals], signal: impl Fn(&ShareSignals) -> Option<f64>) -> Option<Vec<f64>> {
    let values: Vec<f64> = claims.iter().filter_map(|claim| signal(claim).filter(|value| value.is_finite())).collect();
    (!claims.is_empty() && values.len() == claims.len()).then_some(values)
}

/// Returns each value over `total`, rounded so that their sum is at most 1.
fn parts(values: &[f64], total: f64) -> Vec<f64> {
    let mut shares: Vec<f64> = values.iter().map(|value| value / total).collect();
    let mut sum: f64 = shares.iter().sum();
    while sum > 1.0 {
        for share in &mut shares {
            *share /= sum * (1.0 + f64::EPSILON);
        }
        sum = shares.iter().sum();
    }
    shares
}

/// Merges several pods of one workload on one device into one tenant.
fn merge(claims: &[ShareSignals]) -> Vec<ShareSignals> {
    let mut merged: Vec<ShareSignals> = Vec::new();
    let add = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
    for claim in claims {
        match merged.iter_mut().find(|known| known.workload == claim.workload) {
            None => merged.push(claim.clone()),
            Some(known) => {
                known.utilization_ratio = add(known.utilization_ratio, claim.utilization_ratio);
                known.mps_thread_percentage = add(known.mps_thread_percentage, claim.mps_thread_percentage);
                known.mig_slices = add(known.mig_slices, claim.mig_slices);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tenancy::unattributed_share;

    fn claim(workload: &str, used: Option<f64>, mps: Option<f64>, slices: Option<f64>) -> ShareSignals {
        ShareSignals { workload: workload.into(), utilization_ratio: used, mps_thread_percentage: mps, mig_slices: slices }
    }

    fn shown(tenants: &[BoardTenant]) -> Vec<(Option<f64>, Option<ShareMethod>)> {
        tenants.iter().map(|t| (t.share.map(|s| (s * 1e6).round() / 1e6), t.method)).collect()
    }

    #[test]
    fn the_best_signal_that_all_have() {
        let whole = DeviceTotals::default();
        let of = |claims: &[ShareSignals]| shown(&attribute(claims, whole));
        let is = |shares: &[f64], method| shares.iter().map(|share| (Some(*share), Some(method))).collect::<Vec<_>>();
        let used = [claim("n/a", Some(0.6), Some(30.0), None), claim("n/b", Some(0.2), Some(30.0), None)];
        assert_eq!(of(&used), is(&[0.75, 0.25], ShareMethod::ProcessUtilization));
        let others = DeviceTotals { others_utilization_ratio: 0.2, ..whole };
        assert_eq!(shown(&attribute(&used, others)), is(&[0.6, 0.2], ShareMethod::ProcessUtilization));
        let one_silent = [claim("n/a", Some(0.6), Some(30.0), None), claim("n/b", None, Some(50.0), None)];
        assert_eq!(of(&one_silent), is(&[0.3, 0.5], ShareMethod::MpsPercentage));
        let over = [claim("n/a", None, Some(100.0), None), claim("n/b", None, Some(100.0), None)];
        assert_eq!(of(&over), is(&[0.5, 0.5], ShareMethod::MpsPercentage));
        let idle = [claim("n/a", Some(0.0), None, None), claim("n/b", Some(0.0), None, None)];
        assert_eq!(of(&idle), is(&[0.5, 0.5], ShareMethod::Equal));
        assert_eq!(of(&[claim("n/a", Some(0.1), None, None)]), [(None, None)], "the only one has all of it");
        let mig = DeviceTotals { mig_slices: Some(7), ..whole };
        let instances =
            [claim("n/a", None, None, Some(3.0)), claim("n/b", None, None, Some(2.0)), claim("n/a", None, None, Some(1.0))];
        assert_eq!(shown(&attribute(&instances, mig)), is(&[0.571_429, 0.285_714], ShareMethod::MigSlices));
        assert_eq!(shown(&attribute(&instances[..1], mig)), is(&[0.428_571], ShareMethod::MigSlices));
        assert!(attribute(&[], whole).is_empty());
    }

    #[test]
    fn what_is_left_is_nobodys() {
        let tenants =
            attribute(&[claim("n/a", None, Some(30.0), None), claim("n/b", None, Some(30.0), None)], DeviceTotals::default());
        assert!((unattributed_share(&tenants) - 0.4).abs() < 1e-9);
        assert_eq!(unattributed_share(&attribute(&[claim("n/a", None, None, None)], DeviceTotals::default())), 0.0);
        assert_eq!(unattributed_share(&[]), 0.0);
    }

    fn anything() -> impl Strategy<Value = f64> {
        prop_oneof![
            0.0..1.0_f64,
            0.0..200.0_f64,
            Just(0.0),
            Just(f64::NAN),
            Just(f64::INFINITY),
            Just(-1.0),
            Just(1e-300),
            Just(1e300)
        ]
    }

    proptest! {
        #[test]
        fn shares_never_sum_above_one(
            claims in proptest::collection::vec(
                ("[ab]/[a-d]", proptest::option::of(anything()), proptest::option::of(anything()), proptest::option::of((0..9_u32).prop_map(f64::from))), 0..9),
            others in 0.0..2.0_f64,
            slices in proptest::option::of(0..9_u32),
        ) {
            let claims: Vec<ShareSignals> = claims.iter().map(|(name, used, mps, mig)| claim(name, *used, *mps, *mig)).collect();
            let tenants = attribute(&claims, DeviceTotals { others_utilization_ratio: others, mig_slices: slices });
            let names: std::collections::BTreeSet<&str> = claims.iter().map(|c| c.workload.as_str()).collect();
            prop_assert_eq!(names.len(), tenants.len(), "each workload is one tenant");
            let shares: Vec<f64> = tenants.iter().filter_map(|tenant| tenant.share).collect();
            prop_assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{:?}", shares);
            prop_assert!(shares.iter().sum::<f64>() <= 1.0 + 1e-12, "{:?}", shares);
            prop_assert!(shares.len() == tenants.len() || tenants.len() == 1);
            prop_assert!((0.0..=1.0).contains(&unattributed_share(&tenants)));
        }
    }
}
