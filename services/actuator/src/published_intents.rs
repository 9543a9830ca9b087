//! Device intents as published: new ones at once, the same ones before they expire, withdrawn ones as tombstones. Pure.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::v1::DeviceIntent;

/// Time to live of an intent that is not renewed. It outlasts a change of leaders; if no actuator leads any more, devices are put
/// back after this time.
pub const TIME_TO_LIVE_SECONDS: f64 = 300.0;
/// An intent that is still wanted is renewed after this time.
const RENEW_SECONDS: f64 = 100.0;

/// The last intent of every node, as published.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PublishedIntents {
    intents: BTreeMap<String, DeviceIntent>,
    /// Agents do not follow an intent that is older than the one before it.
    newest: EventTime,
}

/// A publication about one node.
#[derive(Debug, Clone, PartialEq)]
pub enum IntentUpdate {
    Publish(DeviceIntent),
    Withdraw(String),
}

impl PublishedIntents {
    /// Takes the published intent of a node from the log; `None` if it was withdrawn.
    pub fn set_from_log(&mut self, node: &str, intent: Option<DeviceIntent>) {
        match intent {
            Some(intent) => {
                self.newest = self.newest.max(intent.time);
                self.intents.insert(node.to_owned(), intent);
            }
            None => drop(self.intents.remove(node)),
        }
    }

    /// Returns the published intents, by node.
    pub fn intents(&self) -> impl Iterator<Item = &DeviceIntent> {
        self.intents.values()
    }

    /// Returns the publications at `now` after which agents hold exactly `wanted`; they count as published.
    pub fn take_updates(&mut self, wanted: &[DeviceIntent], now: EventTime) -> Vec<IntentUpdate> {
        let nodes: BTreeSet<&str> = wanted.iter().map(|intent| intent.node.as_str()).collect();
        let withdrawn_nodes: Vec<_> = self.intents.keys().filter(|node| !nodes.contains(node.as_str())).cloned().collect();
        let mut due = Vec::new();
        for node in withdrawn_nodes {
            self.intents.remove(&node);
            due.push(IntentUpdate::Withdraw(node));
        }
        for desired in wanted {
            let published = self.intents.get(&desired.node);
            if published
                .is_some_and(|published| equal_but_time(published, desired) && now.seconds_since(published.time) < RENEW_SECONDS)
            {
                continue;
            }
            // Another leader's clock may have been ahead.
            self.newest = self.newest.max(now);
            let published = DeviceIntent { time: self.newest, time_to_live_seconds: TIME_TO_LIVE_SECONDS, ..desired.clone() };
            self.intents.insert(desired.node.clone(), published.clone());
            due.push(IntentUpdate::Publish(published));
        }
        due
    }
}

/// Returns whether two intents are equal in everything but their time.
fn equal_but_time(published: &DeviceIntent, desired: &DeviceIntent) -> bool {
    let timeless = |i: &DeviceIntent| DeviceIntent { time: EventTime::default(), time_to_live_seconds: 0.0, ..i.clone() };
    timeless(published) == timeless(desired)
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::DeviceSetting;

    use super::*;
    use crate::check::tests::at;

    fn wish(node: &str, watts: f64) -> DeviceIntent {
        let setting = DeviceSetting { power_limit_watts: Some(watts), ..DeviceSetting::default() };
        DeviceIntent { node: node.into(), decision_id: "d".into(), devices: Some(vec![setting]), ..DeviceIntent::default() }
    }

    fn shape(due: &[IntentUpdate]) -> Vec<(&str, Option<EventTime>)> {
        due.iter()
            .map(|due| match due {
                IntentUpdate::Publish(intent) => (intent.node.as_str(), Some(intent.time)),
                IntentUpdate::Withdraw(node) => (node.as_str(), None),
            })
            .collect()
    }

    #[test]
    fn an_intent_is_published_once_renewed_in_time_and_withdrawn() {
        let mut published = PublishedIntents::default();
        let wanted = [wish("a", 300.0), wish("b", 300.0)];
        let first = published.take_updates(&wanted, at(0.0));
        assert_eq!(shape(&first), [("a", Some(at(0.0))), ("b", Some(at(0.0)))]);
        let IntentUpdate::Publish(intent) = &first[0] else { panic!("it is published") };
        assert!(intent.time_to_live_seconds > 2.0 * RENEW_SECONDS, "one that is late does not end it");
        assert_eq!(published.take_updates(&wanted, at(99.0)), []);
        let changed = [wish("a", 250.0), wish("b", 300.0)];
        assert_eq!(shape(&published.take_updates(&changed, at(99.5))), [("a", Some(at(99.5)))]);
        assert_eq!(shape(&published.take_updates(&changed, at(100.0))), [("b", Some(at(100.0)))]);
        assert_eq!(shape(&published.take_updates(&changed[1..], at(101.0))), [("a", None)]);
        assert_eq!(shape(&published.take_updates(&[], at(102.0))), [("b", None)]);
        assert_eq!(published.take_updates(&[], at(999.0)), []);
    }

    #[test]
    fn a_new_leader_goes_on_where_the_log_ends() {
        let mut published = PublishedIntents::default();
        let wanted = [wish("a", 300.0)];
        published.set_from_log("a", Some(DeviceIntent { time: at(50.0), time_to_live_seconds: 300.0, ..wish("a", 300.0) }));
        published.set_from_log("b", Some(DeviceIntent { time: at(40.0), time_to_live_seconds: 300.0, ..wish("b", 300.0) }));
        published.set_from_log("c", Some(wish("c", 300.0)));
        published.set_from_log("c", None);
        assert_eq!(shape(&published.take_updates(&wanted, at(60.0))), [("b", None)], "what its predecessor left is withdrawn");
        // A clock that is behind the predecessor's still makes an intent that agents follow.
        assert_eq!(shape(&published.take_updates(&[wish("a", 200.0)], at(45.0))), [("a", Some(at(50.0)))]);
    }
}
