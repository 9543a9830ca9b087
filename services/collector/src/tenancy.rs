//! Events of a device's workloads, from one reading of the device. Pure.

use eadt_recordings::tenancy::{BoardTenancies, ReadingAttribution};
pub use eadt_recordings::tenancy::{BoardTenant, unattributed_share};
use eadt_schemas::EventTime;
use eadt_schemas::latest::GpuTelemetry;

/// The stays on one device, with its last reading.
#[derive(Debug, Clone, Default)]
pub struct DeviceTenancy {
    tenancies: BoardTenancies,
    last: Option<GpuTelemetry>,
}

fn portion_of(reading: &GpuTelemetry, portion: &ReadingAttribution) -> GpuTelemetry {
    let mut event = reading.clone();
    portion.apply(&mut event);
    event
}

impl DeviceTenancy {
    /// Returns true if a sample at `time` would be newer than the last one.
    pub fn accepts(&self, time: EventTime) -> bool {
        self.newest().is_none_or(|newest| time > newest)
    }

    /// Returns the event time of the last sample.
    pub fn newest(&self) -> Option<EventTime> {
        self.last.as_ref().map(|last| last.time)
    }

    /// Returns the events of one reading; none if the reading is not newer than the last one.
    pub fn observe(&mut self, reading: &GpuTelemetry, tenants: &[BoardTenant]) -> Vec<GpuTelemetry> {
        if !self.accepts(reading.time) {
            return Vec::new();
        }
        let portions = self.tenancies.observe(reading.time, tenants);
        self.last = Some(reading.clone());
        portions.iter().map(|portion| portion_of(reading, portion)).collect()
    }

    /// Ends every stay: its last event once more, marked `last`. A repeated event adds nothing, its mark counts.
    pub fn end(&mut self) -> Vec<GpuTelemetry> {
        let Some(last) = &self.last else { return Vec::new() };
        self.tenancies.end_all().iter().map(|portion| portion_of(last, portion)).collect()
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::ShareMethod;
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    fn reading(at: i64) -> GpuTelemetry {
        GpuTelemetry {
            time: EventTime::from_micros(at),
            device: "GPU-a".into(),
            power_watts: Some(at as f64),
            ..GpuTelemetry::default()
        }
    }

    fn tenants(names: &[&str]) -> Vec<BoardTenant> {
        let share = (names.len() > 1).then(|| 1.0 / names.len() as f64);
        names
            .iter()
            .map(|name| BoardTenant { workload: (*name).into(), share, method: share.map(|_| ShareMethod::Equal) })
            .collect()
    }

    #[test]
    fn a_change_gives_the_sample_to_both_and_marks_the_old_one_last() {
        let mut tenancy = DeviceTenancy::default();
        let first = tenancy.observe(&reading(1), &tenants(&["n/a"]));
        assert_eq!((first.len(), first[0].tenure, first[0].last), (1, Some(1), false));
        let second = tenancy.observe(&reading(2), &tenants(&["n/b"]));
        let seen: Vec<_> = second.iter().map(|e| (e.workload.as_deref(), e.tenure, e.last, e.power_watts)).collect();
        assert_eq!(seen, [(Some("n/a"), Some(1), true, Some(2.0)), (Some("n/b"), Some(2), false, Some(2.0))]);
        let back = tenancy.observe(&reading(3), &tenants(&["n/a"]));
        assert_eq!(back[1].tenure, Some(3), "a second stay is another tenure");
        let idle = tenancy.observe(&reading(4), &[]);
        assert_eq!(idle.iter().map(|e| (e.workload.is_none(), e.last)).collect::<Vec<_>>(), [(false, true), (true, false)]);
    }

    #[test]
    fn ending_repeats_the_last_sample_of_every_stay() {
        let mut tenancy = DeviceTenancy::default();
        let before = tenancy.observe(&reading(1), &tenants(&["n/a", "n/b"]));
        let after = tenancy.end();
        assert!(after.iter().all(|e| e.last));
        let unmarked: Vec<_> = after.into_iter().map(|e| GpuTelemetry { last: false, ..e }).collect();
        assert_eq!(unmarked, before);
        assert!(tenancy.end().is_empty());
    }

    #[test]
    fn what_is_nobodys_has_an_event_of_its_own() {
        let share = |workload: &str, share| BoardTenant {
            workload: workload.into(),
            share: Some(share),
            method: Some(ShareMethod::MpsPercentage),
        };
        let mut tenancy = DeviceTenancy::default();
        let events = tenancy.observe(&reading(1), &[share("n/a", 0.3), share("n/b", 0.3)]);
        let seen: Vec<_> = events.iter().map(|e| (e.workload.as_deref(), e.share_method, e.tenants)).collect();
        let method = Some(ShareMethod::MpsPercentage);
        assert_eq!(seen, [(Some("n/a"), method, Some(2)), (Some("n/b"), method, Some(2)), (None, method, Some(2))]);
        assert!((events.iter().filter_map(|e| e.share).sum::<f64>() - 1.0).abs() < 1e-9);
        let whole = tenancy.observe(&reading(2), &[share("n/a", 0.5), share("n/b", 0.5)]);
        let nobodys: Vec<_> = whole.iter().filter(|e| e.workload.is_none()).map(|e| (e.share, e.tenure, e.last)).collect();
        assert_eq!(nobodys, [(Some(0.0), Some(1), false)], "nothing is nobody's now, and its stay goes on");
        let alone = tenancy.observe(&reading(3), &tenants(&["n/a"]));
        assert_eq!(alone.iter().filter(|e| e.last && e.workload.is_none()).count(), 1, "it is shared no more");
        assert_eq!(tenancy.end().len(), 1);
    }

    #[test]
    fn a_reading_that_is_not_newer_gives_nothing() {
        let mut tenancy = DeviceTenancy::default();
        assert_eq!(tenancy.observe(&reading(5), &[]).len(), 1);
        assert!(tenancy.observe(&reading(5), &[]).is_empty());
        assert!(tenancy.observe(&reading(4), &[]).is_empty());
    }

    proptest! {
        #![proptest_config(cases(64))]
        #[test]
        fn every_stay_is_one_tenure_and_ends_with_exactly_one_mark(moves in prop::collection::vec(prop::collection::btree_set("[abc]", 0..3), 1..40)) {
            let mut tenancy = DeviceTenancy::default();
            let mut events = Vec::new();
            for (at, names) in moves.iter().enumerate() {
                let list: Vec<_> = names.iter().map(|name| BoardTenant { workload: format!("n/{name}"), share: None, method: None }).collect();
                events.extend(tenancy.observe(&reading(at as i64 + 1), &list));
            }
            events.extend(tenancy.end());
            let mut open = std::collections::BTreeMap::new();
            for event in events {
                if event.last {
                    prop_assert_eq!(open.remove(&event.workload), event.tenure);
                } else {
                    let tenure = event.tenure.unwrap();
                    prop_assert_eq!(*open.entry(event.workload).or_insert(tenure), tenure);
                }
            }
            prop_assert!(open.is_empty());
        }
    }
}
