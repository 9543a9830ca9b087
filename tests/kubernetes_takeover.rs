//! Two actuators on a real API server and a real Apache Kafka: the standby goes on where the leader stopped.

use crate::support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use eadt_bus::Bus;
use eadt_bus::kafka::{FetchPath, KafkaBus, KafkaOptions};
use eadt_schemas::v1::Workload;
use eadt_tests::{Kafka, Kubernetes};
use serde_json::{Value, json};
use support::rollout::{decision, objects};
use support::{Running, eadt, ends, signal, text};

const WITHIN: Duration = Duration::from_mins(3);
/// Time for which a member keeps its partitions if it does not leave and is not replaced in the group.
const SESSION: Duration = Duration::from_mins(4);
/// The Lease of one that was killed runs out after 15 s, and is looked at every two; a busy machine takes its time beside that.
const TAKEN_OVER: Duration = Duration::from_secs(90);

struct Place {
    kafka: Kafka,
    kubernetes: &'static Kubernetes,
    namespace: String,
    data: tempfile::TempDir,
}

impl Place {
    fn on(&self, args: &[&str]) -> Command {
        let mut command = eadt(self.data.path(), args);
        command.env("KAFKA_BROKERS", self.kafka.brokers());
        command
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubernetes.kubectl(&[&["-n", &*self.namespace], arguments].concat()).unwrap()
    }

    fn actuator(&self, identity: &str) -> Running {
        let mut command = self.on(&["actuator", "--kubernetes"]);
        command.env("KUBECONFIG", self.kubernetes.admin_kubeconfig()).env("EADT_KUBERNETES__IDENTITY", identity);
        command.env("EADT_KUBERNETES__NAMESPACE", &self.namespace).env("EADT_KUBERNETES__ONLY_NAMESPACE", &self.namespace);
        command.env("EADT_ACTUATOR__CHANGE_INTERVAL_SECONDS", "0");
        command.env("EADT_BUS__PROPERTIES__SESSION__TIMEOUT__MS", SESSION.as_millis().to_string());
        let log = std::fs::File::options().create(true).append(true).open(self.log(identity)).unwrap();
        Running(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    fn log(&self, identity: &str) -> std::path::PathBuf {
        self.data.path().join(format!("{identity}.log"))
    }

    fn eventually<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            let logs = || ["a", "b"].map(|who| std::fs::read_to_string(self.log(who)).unwrap_or_default()).join("\n--\n");
            assert!(begun.elapsed() < WITHIN, "not within {WITHIN:?}: {what}\n{}", logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn leads(&self, identity: &str) {
        self.eventually(&format!("{identity} leads"), || {
            let holder = self.kubectl(&["get", "leases", "-o", "jsonpath={.items[*].spec.holderIdentity}"]);
            (holder.trim() == identity).then_some(())
        });
    }

    fn events(&self, topic: &str) -> Vec<Value> {
        let (out, errors, good) = text(self.on(&["tail", topic, "--from-start", "--until-end", "--json"]));
        assert!(good, "{errors}");
        out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].clone()).collect()
    }

    /// The layout with this percentage, once it is ready.
    fn ready_with(&self, percentage: u32) -> Workload {
        self.eventually(&format!("{percentage} % is ready"), || {
            let last = self.events("workloads.v1").pop()?;
            let there = last["layout"]["mps_thread_percentage"] == percentage && last["ready_time"].is_string();
            there.then(|| serde_json::from_value(last).unwrap())
        })
    }

    /// Decides for another percentage, and waits until the object has it; how long that took.
    fn change(&self, id: &str, present: Workload, percentage: u32) -> Duration {
        let record = decision(id, present, percentage);
        let options = KafkaOptions {
            brokers: self.kafka.brokers().clone(),
            properties: [].into(),
            client_id: "test".into(),
            fetch: FetchPath::default(),
        };
        let mut producer = KafkaBus::connect(options).unwrap().producer("test").unwrap();
        producer.send(record).unwrap();
        assert!(producer.flush(WITHIN).unwrap());
        let begun = Instant::now();
        let wanted = percentage.to_string();
        self.eventually(&format!("{percentage} % is in force"), || {
            let set: Value = serde_json::from_str(&self.kubectl(&["get", "statefulset", "llm", "-o", "json"])).unwrap();
            (support::rollout::percentage(&set) == Some(&*wanted)).then_some(())
        });
        begun.elapsed()
    }
}

#[test]
fn a_standby_actuator_goes_on_with_the_decisions_of_one_that_left_or_was_killed() {
    let kubernetes = Kubernetes::shared();
    kubernetes.define(include_str!("../deploy/crds/energypolicies.yaml")).unwrap();
    let namespace = kubernetes.namespace("takeover").unwrap();
    let place = Place { kafka: Kafka::start().unwrap(), kubernetes, namespace, data: tempfile::tempdir().unwrap() };
    assert!(text(place.on(&["topics", "apply"])).2);
    for object in objects() {
        place.kubernetes.apply(&place.namespace, &object.to_string()).unwrap();
    }
    let first = place.actuator("a");
    place.leads("a");
    let second = place.actuator("b");
    place.change("d-1", place.ready_with(50), 45);
    let present = place.ready_with(45);

    signal(&first.0, "-TERM");
    ends(first, WITHIN);
    let left = place.change("d-2", present, 40);
    println!("after one that left: {:.1} s", left.as_secs_f64());
    assert!(left < TAKEN_OVER, "{left:?}");

    let third = place.actuator("a");
    place.leads("b");
    place.change("d-3", place.ready_with(40), 35);
    let present = place.ready_with(35);
    let begun = Instant::now();
    drop(second);
    place.change("d-4", present, 30);
    let killed = begun.elapsed();
    println!("after one that was killed: {:.1} s", killed.as_secs_f64());
    assert!(killed < TAKEN_OVER, "{killed:?}");

    let all_ready = || {
        let actuations = place.events("actuations.v1");
        let of =
            |id: &str| actuations.iter().filter(|a| a["decision_id"] == id).map(|a| a["outcome"].clone()).collect::<Vec<_>>();
        let all: Vec<_> = (1..=4).map(|number| of(&format!("d-{number}"))).collect();
        all[3].contains(&json!("ready")).then_some(all)
    };
    let outcomes = place.eventually("the last one is ready", all_ready);
    assert!(outcomes.iter().all(|outcomes| *outcomes == [json!("applied"), json!("ready")]), "each once: {outcomes:?}");
    signal(&third.0, "-TERM");
    ends(third, WITHIN);
}
