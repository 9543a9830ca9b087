//! The power budget over time, as the decisions of its stage name it.
//!
//! Each decision of that stage carries the budget that it was made for, also one that only maintains. The budget is in force from
//! then on, until the next decision of any member or the expiry of the last one.

use std::collections::BTreeMap;

use eadt_core::controller::ControllerName;
use eadt_schemas::EventTime;
use eadt_schemas::v1::Decision;

/// The controller of the stage that shares the power budget.
const STAGE: &str = ControllerName::PowerBudget.as_str();
/// Figures of its decisions: the budget, and the number of workloads that share it.
const BUDGET_WATTS: &str = "budget_watts";
const MEMBERS: &str = "members";
/// Times that are kept, the newest ones: ten weeks of windows of a minute.
const MOST_TIMES: usize = 100_000;

/// The budget of the decisions of one time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct BudgetPoint {
    watts: f64,
    /// The decisions expire then.
    until: EventTime,
}

/// The budgets of a record. The order in which decisions are read makes no difference.
#[derive(Debug, Default)]
pub struct PowerBudgetTimeline {
    /// By the time of the decisions, which all members have in common.
    points: BTreeMap<EventTime, BudgetPoint>,
    /// The newest decision's time, and the number of workloads that share the budget.
    newest: Option<(EventTime, usize)>,
}

impl PowerBudgetTimeline {
    /// Takes a decision; those of other controllers are ignored.
    pub fn take(&mut self, decision: &Decision) {
        if decision.controller != STAGE {
            return;
        }
        let figure = |name: &str| decision.evidence.get(name).copied().filter(|value| value.is_finite() && *value > 0.0);
        let Some(watts) = figure(BUDGET_WATTS) else { return };
        if let Some(members) = figure(MEMBERS)
            && self.newest.is_none_or(|(time, _)| time <= decision.time)
        {
            self.newest = Some((decision.time, members as usize));
        }
        let added = BudgetPoint { watts, until: decision.expires.max(decision.time) };
        let point = self.points.entry(decision.time).or_insert(added);
        // Processors with different settings: the lower budget counts, whichever is read first.
        *point = BudgetPoint { watts: point.watts.min(watts), until: point.until.max(added.until) };
        if self.points.len() > MOST_TIMES {
            self.points.pop_first();
        }
    }

    /// Returns the budget that is in force last in an interval, in watts; `None` if none is in force.
    pub fn watts_in(&self, from: EventTime, to: EventTime) -> Option<f64> {
        let (_, point) = self.points.range(..to).next_back()?;
        (point.until > from).then_some(point.watts)
    }

    /// Returns the number of workloads that share the budget, by the newest decision.
    pub fn workloads(&self) -> Option<usize> {
        self.newest.map(|(_, workloads)| workloads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> EventTime {
        EventTime::from_micros(minute * 60_000_000)
    }

    fn decision(minute: i64, watts: f64) -> Decision {
        Decision {
            time: at(minute),
            expires: at(minute + 5),
            controller: STAGE.to_owned(),
            evidence: [(BUDGET_WATTS.to_owned(), watts), (MEMBERS.to_owned(), 3.0)].into(),
            ..Decision::default()
        }
    }

    /// Returns the budget in each of the minutes 0 to 29.
    fn minutes(timeline: &PowerBudgetTimeline) -> Vec<Option<f64>> {
        (0..30).map(|minute| timeline.watts_in(at(minute), at(minute + 1))).collect()
    }

    #[test]
    fn the_budget_in_force_is_the_same_in_whichever_order_decisions_are_read() {
        let watts = |minute: i64| if (10..13).contains(&minute) { 700.0 } else { 900.0 };
        let decisions: Vec<Decision> = (2..20).map(|minute| decision(minute, watts(minute))).collect();
        // The last decision is of minute 19, and expires five minutes later.
        let wanted: Vec<Option<f64>> = (0..30).map(|minute| (2..24).contains(&minute).then(|| watts(minute))).collect();
        for stride in [1, 5, 7, 11, 17] {
            let mut timeline = PowerBudgetTimeline::default();
            // Twice, as two members have decisions of the same times.
            (0..36).for_each(|turn| timeline.take(&decisions[turn * stride % 18]));
            assert_eq!((minutes(&timeline), timeline.workloads()), (wanted.clone(), Some(3)), "stride {stride}");
        }
    }

    #[test]
    fn a_budget_that_is_named_no_more_ends_and_other_controllers_name_none() {
        let mut timeline = PowerBudgetTimeline::default();
        timeline.take(&Decision { controller: "power-cap".to_owned(), ..decision(0, 900.0) });
        timeline.take(&decision(0, f64::NAN));
        assert_eq!((minutes(&timeline), timeline.workloads()), (vec![None; 30], None));
        timeline.take(&decision(0, 900.0));
        timeline.take(&decision(20, 900.0));
        timeline.take(&decision(20, 800.0));
        let known = |minute: usize| minutes(&timeline)[minute];
        assert_eq!((known(4), known(5), known(19), known(20)), (Some(900.0), None, None, Some(800.0)));
    }

    #[test]
    fn a_long_record_takes_bounded_memory() {
        let mut timeline = PowerBudgetTimeline::default();
        let newest = MOST_TIMES as i64 + 9;
        (0..=newest).for_each(|minute| timeline.take(&decision(minute, 500.0)));
        assert_eq!(timeline.points.len(), MOST_TIMES);
        assert_eq!((timeline.watts_in(at(8), at(9)), timeline.watts_in(at(newest), at(newest + 1))), (None, Some(500.0)));
    }
}
