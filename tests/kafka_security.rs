//! A secured Apache Kafka: authentication, authorisation, and the error for a user without a right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::kafka::{FetchPath, KafkaBus, KafkaOptions, SaslMechanism, Secret, SecurityProtocol, SecuritySettings};
use eadt_bus::rights::{AclEntry, AclOperation, AclResource};
use eadt_bus::topics::{PartitionGrowthPolicy, apply, check_layout, desired, plan};
use eadt_bus::{
    Bus, CommitStep, IsolationLevel, MemberOptions, Membership, PollEvent, ProducerRecord, Remedy, StartOffset, TopicPartition,
};
use eadt_tests::kafka::fetch_path;
use eadt_tests::kafka::secured::{Authority, SecuredKafka, rights_of_parts};

const WAIT: Duration = Duration::from_mins(1);
/// Time for which a broker accepts an authentication.
const REAUTHENTICATE: Duration = Duration::from_millis(1500);

fn topic_names() -> Vec<String> {
    desired("eadt.", 1, 1).iter().map(|topic| topic.name.to_string()).collect()
}

fn make_topics(admin: &KafkaBus) {
    apply(admin, &plan(&[], &desired("eadt.", 2, 1), PartitionGrowthPolicy::Refuse)).unwrap();
}

#[test]
fn only_who_is_known_by_password_or_certificate_gets_in() {
    let reauthenticate = format!("listener.name.sasl_ssl.connections.max.reauth.ms={}", REAUTHENTICATE.as_millis());
    let kafka = SecuredKafka::start_with(&["alice"], &[&reauthenticate]).unwrap();
    let foreign = tempfile::tempdir().unwrap();
    let stranger = Authority::new(foreign.path(), "stranger").unwrap();
    let (certificate, key) = stranger.sign("admin").unwrap();
    let connect = |brokers: String, security: &SecuritySettings| {
        let options = KafkaOptions::secured(brokers, &BTreeMap::new(), security, "tests");
        options.and_then(|options| KafkaBus::connect(options.with_fetch(fetch_path())))
    };
    let (password, tls) = (kafka.brokers(), kafka.ssl_brokers());
    let alice = kafka.user("alice");
    let holder = kafka.holder("alice").unwrap();
    let from_file =
        SecuritySettings { password: None, password_file: Some(kafka.password_file("alice").unwrap()), ..alice.clone() };
    for (brokers, security) in [(&password, &alice), (&password, &from_file), (&tls, &holder)] {
        connect(brokers.clone(), security).unwrap();
    }
    let denied = [
        ("no TLS at all", &password, SecuritySettings::default(), "no broker answered"),
        ("no TLS where a certificate is asked for", &tls, SecuritySettings::default(), "no broker answered"),
        (
            "a wrong password",
            &password,
            SecuritySettings { password: Some(Secret::new("wrong-guess")), ..alice.clone() },
            "User:alice",
        ),
        ("an unknown user", &password, SecuritySettings { username: "mallory".into(), ..alice.clone() }, "User:mallory"),
        (
            "an authority that did not sign the broker",
            &password,
            SecuritySettings { ca_file: Some(stranger.ca_file()), ..alice.clone() },
            "TLS",
        ),
        ("no certificate", &tls, SecuritySettings { certificate_file: None, key_file: None, ..holder.clone() }, ""),
        (
            "a certificate of another authority that names the administrator",
            &tls,
            SecuritySettings { certificate_file: Some(certificate), key_file: Some(key), ..holder.clone() },
            "",
        ),
        ("a password where a certificate is asked for", &tls, alice.clone(), ""),
    ];
    std::thread::scope(|scope| {
        for (what, brokers, security, part) in &denied {
            let connect = &connect;
            scope.spawn(move || {
                let begun = Instant::now();
                loop {
                    let error = connect((*brokers).clone(), security).map(|_| ()).expect_err(what).to_string();
                    assert!(!error.contains("wrong-guess") && !error.contains("planted-"), "{what}: {error}");
                    if error.contains(part) {
                        break;
                    }
                    // A busy machine may not get as far as to refuse while a connection is waited for.
                    let silent = error.contains("no broker answered");
                    assert!(silent && begun.elapsed() < Duration::from_secs(30), "{what}: {error}");
                }
            });
        }
    });
    reads_natively_by_every_mechanism(&kafka);
}

/// The fetch path of our own has a client side of TLS and SASL of its own, which goes on past the time for which the broker believes it.
fn reads_natively_by_every_mechanism(kafka: &SecuredKafka) {
    let admin = kafka.admin().unwrap();
    make_topics(&admin);
    let rights = [
        AclEntry::on(AclResource::Topic("eadt.actuations.v1".into()), AclOperation::Read),
        AclEntry::on(AclResource::Topic("eadt.actuations.v1".into()), AclOperation::Describe),
    ];
    admin.grant("User:alice", &rights).unwrap();
    let by = |mechanism| SecuritySettings { mechanism, ..kafka.user("alice") };
    let ways = [
        (kafka.brokers(), by(SaslMechanism::ScramSha512)),
        (kafka.brokers(), by(SaslMechanism::ScramSha256)),
        (kafka.brokers(), by(SaslMechanism::Plain)),
        (kafka.ssl_brokers(), kafka.holder("alice").unwrap()),
    ];
    let wanted: i64 = 30;
    std::thread::scope(|scope| {
        for (brokers, security) in &ways {
            scope.spawn(move || {
                let options = KafkaOptions::secured(brokers.clone(), &BTreeMap::new(), security, "tests").unwrap();
                let bus = KafkaBus::connect(options.with_fetch(FetchPath::Native)).unwrap();
                let from = [(TopicPartition::new("eadt.actuations.v1", 0), StartOffset::At(0))];
                let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted).unwrap();
                let (begun, mut polled, mut offsets) = (Instant::now(), Vec::new(), Vec::new());
                while offsets.len() < wanted as usize {
                    assert!(begun.elapsed() < WAIT, "by {security:?} only {offsets:?} came");
                    // The broker takes a moment to act on a change.
                    if let Err(error) = reader.poll(100, Duration::from_millis(100), &mut polled) {
                        assert!(error.to_string().contains("lacks the right"), "by {security:?}: {error}");
                    }
                    offsets.extend(polled.drain(..).filter_map(|item| match item {
                        PollEvent::Record(record) => Some(record.offset),
                        _ => None,
                    }));
                }
                assert_eq!(offsets, (0..wanted).collect::<Vec<_>>(), "by {security:?}");
            });
        }
        scope.spawn(|| {
            let mut producer = admin.producer("tests").unwrap();
            for _ in 0..wanted {
                producer.send(outgoing("eadt.actuations.v1")).unwrap();
                assert!(producer.flush(WAIT).unwrap());
                std::thread::sleep(2 * REAUTHENTICATE / wanted as u32);
            }
        });
    });
}

#[test]
fn no_right_of_a_file_implies_another_one_and_lacking_any_is_noticed() {
    let files = rights_of_parts().unwrap();
    assert!(files.len() >= 9, "{:?}", files.keys());
    let lacking_one = |part: &str, index: usize| format!("{part}-without-{index}");
    let mut users: Vec<String> = files.keys().cloned().collect();
    for (part, rights) in &files {
        users.extend((0..rights.len()).map(|index| lacking_one(part, index)));
    }
    users.push("nobody".into());
    let kafka = SecuredKafka::start(&users.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let admin = kafka.admin().unwrap();
    make_topics(&admin);
    for (part, rights) in &files {
        admin.grant(&format!("User:{part}"), rights).unwrap();
        for index in 0..rights.len() {
            let mut fewer = rights.clone();
            fewer.remove(index);
            admin.grant(&format!("User:{}", lacking_one(part, index)), &fewer).unwrap();
        }
    }
    let topics = topic_names();
    for (part, rights) in &files {
        let begun = Instant::now();
        // The broker takes a moment to act on a change.
        loop {
            let lacking = kafka.bus(part).unwrap().missing_rights(rights, &topics).unwrap();
            if lacking.is_empty() {
                break;
            }
            assert!(begun.elapsed() < WAIT, "{part} lacks {lacking:?}");
        }
        for (index, right) in rights.iter().enumerate() {
            let user = lacking_one(part, index);
            let lacking = kafka.bus(&user).unwrap().missing_rights(rights, &topics).unwrap();
            assert!(!lacking.is_empty(), "{part} needs no {right}: another right implies it");
            for missing in lacking {
                let same = missing.operation == right.operation && missing.resource.name().starts_with(right.resource.name());
                assert!(same, "{user} was refused {right}, and is reported to lack {missing}");
            }
        }
        let nothing = kafka.bus("nobody").unwrap().missing_rights(rights, &topics).unwrap();
        // Of topics that may not be looked at, no more can be reported than what would let one look.
        let certain = |right: &&AclEntry| {
            right.operation.implies(AclOperation::Describe) || !matches!(right.resource, AclResource::Topic(_))
        };
        assert!(nothing.len() >= rights.iter().filter(certain).count(), "{part}: {nothing:?}");
    }
}

/// An action of a user who lacks one right.
type Act = fn(&KafkaBus) -> Result<(), eadt_bus::BusError>;

fn join_and_commit(bus: &KafkaBus) -> Result<(), eadt_bus::BusError> {
    let topics = vec![Arc::from("eadt.decisions.v1")];
    let mut member =
        bus.member(MemberOptions { group: "g".into(), membership: Membership::Transactional("g-0".into()), topics })?;
    let (begun, mut polled, mut started) = (Instant::now(), Vec::new(), false);
    while begun.elapsed() < WAIT {
        member.poll(10, Duration::from_millis(100), &mut polled)?;
        for item in polled.drain(..) {
            match item {
                PollEvent::Assigned(partitions) => {
                    for at in &partitions {
                        member.start(at, 0)?;
                    }
                    started = true;
                    let output = outgoing("eadt.actuations.v1");
                    let positions = partitions.into_iter().map(|at| (at, 0)).collect();
                    member.commit(&CommitStep { outputs: vec![output], positions })?;
                }
                PollEvent::End { .. } if started => return Ok(()),
                _ => {}
            }
        }
    }
    panic!("neither joined nor refused");
}

fn outgoing(topic: &str) -> ProducerRecord {
    ProducerRecord {
        topic: topic.into(),
        partition: Some(0),
        key: Some("k".into()),
        value: Some("{}".into()),
        headers: Vec::new(),
    }
}

fn produce(bus: &KafkaBus) -> Result<(), eadt_bus::BusError> {
    let mut producer = bus.producer("tests")?;
    producer.send(outgoing("eadt.actuations.v1"))?;
    producer.flush(WAIT).map(|settled| assert!(settled))
}

fn read(bus: &KafkaBus) -> Result<(), eadt_bus::BusError> {
    read_until(bus, |polled| !polled.is_empty())
}

fn read_until(bus: &KafkaBus, enough: impl Fn(&[PollEvent]) -> bool) -> Result<(), eadt_bus::BusError> {
    let from = [(TopicPartition::new("eadt.decisions.v1", 0), StartOffset::At(0))];
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let (begun, mut polled) = (Instant::now(), Vec::new());
    while begun.elapsed() < WAIT && !enough(&polled) {
        reader.poll(10, Duration::from_millis(100), &mut polled)?;
    }
    Ok(())
}

/// The client library looks for the group beside the reading, and reports it if it is refused.
fn read_on(bus: &KafkaBus) -> Result<(), eadt_bus::BusError> {
    read_until(bus, |_| false)
}

fn look(bus: &KafkaBus) -> Result<(), eadt_bus::BusError> {
    check_layout(bus, "eadt.").map(drop)
}

#[test]
fn the_error_of_a_missing_right_names_user_right_and_resource() {
    let topic = |name: &str| AclResource::Topic(format!("eadt.{name}.v1"));
    let all = [
        AclEntry::on_prefix(AclResource::Topic("eadt.".into()), AclOperation::Describe),
        AclEntry::on_prefix(AclResource::Topic("eadt.".into()), AclOperation::DescribeConfigs),
        AclEntry::on(topic("decisions"), AclOperation::Read),
        AclEntry::on(topic("actuations"), AclOperation::Write),
        AclEntry::on(AclResource::Group("g".into()), AclOperation::Read),
        AclEntry::on_prefix(AclResource::TransactionalId("g-".into()), AclOperation::Write),
        AclEntry::on(AclResource::Group("tests-reader".into()), AclOperation::Describe),
    ];
    let cases: [(&str, usize, Act, &str); 9] = [
        ("a", 0, look, "Describe on topic eadt."),
        ("b", 1, look, "DescribeConfigs on topic eadt."),
        ("c", 2, join_and_commit, "Read on topic eadt.decisions.v1"),
        ("d", 2, read, "Read on topic eadt.decisions.v1"),
        ("e", 3, join_and_commit, "Write on topic eadt.actuations.v1"),
        ("f", 3, produce, "Write on topic eadt.actuations.v1"),
        ("g", 4, join_and_commit, "Read on group g"),
        ("h", 5, join_and_commit, "Write on transactional id g-0"),
        ("i", 6, read_on, "on group tests-reader"),
    ];
    let mut users: Vec<&str> = cases.iter().map(|(user, ..)| *user).collect();
    users.push("complete");
    let kafka = SecuredKafka::start(&users).unwrap();
    let admin = kafka.admin().unwrap();
    make_topics(&admin);
    admin.grant("User:complete", &all).unwrap();
    for (user, without, ..) in &cases {
        let mut fewer = all.to_vec();
        fewer.remove(*without);
        admin.grant(&format!("User:{user}"), &fewer).unwrap();
    }
    let connect = |user: &str| {
        let options = KafkaOptions::secured(kafka.brokers(), &BTreeMap::new(), &kafka.user(user), "tests").unwrap();
        KafkaBus::connect(options.with_fetch(fetch_path())).unwrap()
    };
    let complete = connect("complete");
    let begun = Instant::now();
    while let Err(error) = look(&complete) {
        assert!(begun.elapsed() < WAIT, "{error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    for act in [look as Act, join_and_commit, produce, read] {
        act(&complete).unwrap();
    }
    for (user, _, act, lacks) in cases {
        let error = act(&connect(user)).expect_err(lacks);
        let message = error.to_string();
        assert!(message.contains(&format!("User:{user} lacks the right")) && message.contains(lacks), "{lacks}: {message}");
        assert_eq!(error.remedy, Remedy::Stop, "{message}");
    }
}

#[test]
fn a_certificate_is_a_user_with_rights_of_its_own() {
    let kafka = SecuredKafka::start(&["alice"]).unwrap();
    let admin = kafka.admin().unwrap();
    make_topics(&admin);
    let rights: Vec<AclEntry> = [AclOperation::Describe, AclOperation::DescribeConfigs]
        .into_iter()
        .map(|operation| AclEntry::on_prefix(AclResource::Topic("eadt.".into()), operation))
        .collect();
    admin.grant("User:bob", &rights).unwrap();
    let options = |security: &SecuritySettings| {
        KafkaOptions::secured(kafka.ssl_brokers(), &BTreeMap::new(), security, "tests").unwrap().with_fetch(fetch_path())
    };
    let bob = KafkaBus::connect(options(&kafka.holder("bob").unwrap())).unwrap();
    let begun = Instant::now();
    while let Err(error) = look(&bob) {
        assert!(begun.elapsed() < WAIT, "{error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(bob.principal().contains("bob.pem"), "{}", bob.principal());
    let carol = KafkaBus::connect(options(&kafka.holder("carol").unwrap())).unwrap();
    let error = look(&carol).unwrap_err().to_string();
    assert!(error.contains("carol.pem lacks the right Describe"), "{error}");
    // No user can grant rights to themselves.
    let error = bob.grant("User:bob", &rights).unwrap_err().to_string();
    assert!(error.contains("denied"), "{error}");
    assert_eq!(kafka.holder("dave").unwrap().protocol, SecurityProtocol::Ssl);
}

#[test]
fn the_files_name_every_part_once() {
    let names: BTreeSet<String> = rights_of_parts().unwrap().into_keys().collect();
    let expected = ["actuator", "agent", "archiver", "collector", "optimizer", "processor", "reader", "simulator", "topics"];
    assert_eq!(names, expected.map(str::to_owned).into());
}
