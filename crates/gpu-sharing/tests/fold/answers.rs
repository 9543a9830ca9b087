//! Tests answers to decisions, and layouts from any writer.

use eadt_schemas::v1::{ActuationOutcome, ChangeValidation, UpdateMode, Workload};

use super::site::{Actuator, Site, at, in_turn, job};

#[test]
fn what_is_refused_is_not_asked_for_again_for_a_while() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400])]);
    site.actuator = Actuator::Refuses;
    // Refused by the look at minute 5, and so for an hour, of which the last moment is not one any more.
    site.run(64);
    site.assert_reason(
        "a/steep",
        "was refused or gave no usable window, so that none is tried before 1970-01-01T01:05:00.000000Z",
    );
    assert_eq!(site.asked_at(), [4]);
    site.run(3);
    assert_eq!(site.asked_at(), [4, 65]);
    let mut site = Site::new(in_turn());
    site.run(80);
    site.actuator = Actuator::Refuses;
    let before = site.changes().len();
    site.run(40);
    assert_eq!(site.changes().len(), before + 1);
    site.assert_reason("a/steep", "no change before");
}

/// Each is decided twice before it is applied: the outcome of the first decision counts for the change.
#[test]
fn what_is_rolled_back_is_not_asked_for_again_for_a_while() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400])]);
    (site.actuator, site.delay) = (Actuator::RollsBack, 1);
    site.run(8);
    assert_eq!((site.asked_at(), site.shares()), (vec![4, 5], vec![50]));
    site.run(60);
    assert_eq!(site.asked_at(), [4, 5, 68], "an hour after the look that knew of it");
    // The rolled-back share was only for measuring: the workload does not keep it.
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400])]);
    site.until(0, 100);
    site.actuator = Actuator::RollsBack;
    while site.asked() != [100, 20] {
        site.minute();
    }
    site.run(3).actuator = Actuator::Obeys;
    site.run(40);
    assert_eq!((site.asked(), site.shares()), (vec![100, 20, 50], vec![50]), "{:#?}", site.changes());
}

/// Every change is asked for twice before it is carried out, and the second decision of each is refused: it is for a layout of
/// the past.
#[test]
fn a_refusal_of_what_was_asked_for_twice_ends_nothing() {
    let mut site = Site::new(in_turn());
    site.delay = 1;
    site.run(40);
    site.assert_reason("a/steep", "all shares that are needed are measured");
    site.run(80);
    assert_eq!(site.shares(), [80, 20], "{:#?}", site.last("a/steep"));
    assert!(site.decisions.iter().any(|decision| decision.validation == ChangeValidation::Kept));
}

/// The answers come before the layout that they speak of, and in whatever order.
#[test]
fn a_refusal_ends_nothing_where_another_decision_of_the_change_was_applied_before() {
    for swapped in [false, true] {
        let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400])]);
        site.delay = 1_000;
        site.run(5);
        assert_eq!(site.asked_at(), [4, 5]);
        let mut answers = [(4, ActuationOutcome::Applied), (5, ActuationOutcome::Refused)];
        if swapped {
            answers.reverse();
        }
        for (minute, outcome) in answers {
            let decision = format!("a/steep@{}/sm-partition", at(minute));
            site.answer("a/steep", &decision, outcome, at(5).plus_micros(minute));
        }
        site.run(1);
        assert_eq!(site.asked_at(), [4, 5, 6], "{}", site.last("a/steep").reason);
    }
}

/// An answer to something that was asked for long ago.
#[test]
fn a_refusal_of_a_former_decision_ends_nothing() {
    let mut site = Site::new(in_turn());
    site.run(80);
    let former = site.changes()[0].id.clone();
    let mut changed = site.changes().len();
    for _ in 0..40 {
        site.minute();
        if site.changes().len() > changed {
            changed = site.changes().len();
            site.answer("a/steep", &former, ActuationOutcome::Refused, at(site.minute).plus_micros(4));
        }
    }
    assert_eq!(site.shares(), [80, 20], "{:#?}", site.last("a/steep"));
}

#[test]
fn of_the_answers_between_two_looks_the_newest_64_count() {
    for (others, asked) in [(63, vec![4]), (64, vec![4, 5])] {
        let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400])]);
        site.delay = 1_000;
        site.run(4);
        let decision = site.changes()[0].id.clone();
        site.answer("a/steep", &decision, ActuationOutcome::Refused, at(4).plus_micros(1));
        for i in 0..others {
            let other = format!("a/steep@{}/sm-partition", at(1));
            site.answer("a/steep", &other, ActuationOutcome::Refused, at(4).plus_micros(2 + i));
        }
        site.run(1);
        assert_eq!(site.asked_at(), asked, "{}", site.last("a/steep").reason);
    }
}

/// By their generations one sees which of them a look goes by.
#[test]
fn a_look_goes_by_the_newest_layout_of_its_time_however_layouts_came() {
    let mut observed = job("a/steep", 0.95, &[0..400]);
    observed.workload.mode = UpdateMode::Observe;
    let workload = observed.workload.clone();
    let mut site = Site::new(vec![observed]);
    let declare_layout = |site: &mut Site, generation: u64, seconds: i64| {
        let time = at(0).plus_micros(seconds * 1_000_000);
        site.declare(&Workload { generation, time, ..workload.clone() });
    };
    let look = |site: &mut Site| site.run(1).last("a/steep").generation;
    site.run(3);
    // Out of order, one of them of the next minute.
    declare_layout(&mut site, 5, 210);
    declare_layout(&mut site, 4, 190);
    declare_layout(&mut site, 6, 270);
    assert_eq!(look(&mut site), Some(5));
    assert_eq!(look(&mut site), Some(6));
    // A later layout for the same time corrects it.
    declare_layout(&mut site, 7, 301);
    declare_layout(&mut site, 8, 301);
    assert_eq!(look(&mut site), Some(8));
    // Also after an evaluation; older layouts do not count any more.
    declare_layout(&mut site, 9, 301);
    assert_eq!(look(&mut site), Some(9));
    declare_layout(&mut site, 3, 120);
    assert_eq!(look(&mut site), Some(9));
    // At most 64 are kept for later evaluations: the oldest of more counts as the layout in force.
    for i in 1..=64 {
        declare_layout(&mut site, 10 + i as u64, 1_000 + i);
    }
    assert_eq!(look(&mut site), Some(9));
    declare_layout(&mut site, 75, 1_065);
    assert_eq!(look(&mut site), Some(11));
    site.run(10);
    assert_eq!(site.last("a/steep").generation, Some(75));
}
