//! Intents in the log become settings of GPUs, through the real NVML binding, and go with their intents.

use crate::support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use eadt_agent::LazyBus;
use eadt_bus::{Bus, BusError, Remedy};
use eadt_nvml::fake::{FakeLibrary, FakeMps, FakeSettings};
use eadt_nvml::set::{SettableDriver, SettableGpu};
use eadt_nvml::{GpuLost, NvmlDriver};
use eadt_schemas::Topic;
use eadt_schemas::v1::{DeviceIntent, DeviceSetting, DeviceState, MpsTenant, SettingOutcome};
use support::{NODE, allow, earlier, intent, log, publish, publish_raw, read, settings, start, start_on, start_with, states};

fn wish(device: Option<&str>, watts: Option<f64>, mhz: Option<f64>) -> DeviceSetting {
    DeviceSetting { device: device.map(str::to_owned), power_limit_watts: watts, sm_clock_mhz: mhz, ..DeviceSetting::default() }
}

fn asking(devices: Vec<DeviceSetting>) -> DeviceIntent {
    DeviceIntent { devices: Some(devices), ..intent(600.0) }
}

fn last(bus: &dyn Bus) -> DeviceState {
    states(bus).pop().unwrap_or_default()
}

/// Returns power cap and lock.
fn of(fake: &FakeLibrary, gpu: u32) -> (u32, u32) {
    let FakeSettings { power_milliwatts, lock_mhz, .. } = fake.settings(gpu);
    (power_milliwatts, lock_mhz)
}

const AS_BEFORE: (u32, u32) = (700_000, 0);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_is_held_reported_and_put_back_at_the_end() {
    let (fake, folder) = (FakeLibrary::new("3 old 1\n"), tempfile::tempdir().unwrap());
    let bus = log(&folder.path().join("log"));
    let running = start(&settings(&fake, &folder.path().join("state")), Some(bus.clone()));
    running.until("ready", || running.health.waiting().is_empty()).await;
    // An intent for another node, in any partition, is ignored.
    publish(&*bus, &DeviceIntent { node: "node-2".into(), ..asking(vec![wish(None, Some(250.0), None)]) });
    publish(
        &*bus,
        &asking(vec![
            wish(None, Some(400.5), None),
            wish(Some("GPU-fake-1"), Some(300.0), Some(1417.0)),
            wish(Some("GPU-fake-3"), None, Some(1200.0)),
        ]),
    );
    running
        .until("held", || last(&*bus).devices.iter().filter(|d| d.power_limit_outcome == SettingOutcome::Held).count() == 3)
        .await;
    assert_eq!((of(&fake, 0), of(&fake, 1), of(&fake, 2)), ((400_500, 0), (300_000, 1410), (400_500, 0)));
    // A board without locks has application clocks.
    assert_eq!((fake.settings(3).graphics_mhz, fake.settings(3).power_milliwatts), (1200, 700_000));
    let state = last(&*bus);
    assert_eq!((state.node.as_str(), state.decision_id.as_deref(), state.stopped), (NODE, Some("d-1"), false));
    let one = &state.devices[1];
    assert_eq!(
        (one.device.as_str(), one.gpu_model.as_deref(), one.decision_id.as_deref()),
        ("GPU-fake-1", Some("Fake H100"), Some("d-1"))
    );
    assert_eq!(
        (one.power_limit_watts, one.original_power_limit_watts, one.sm_clock_mhz),
        (Some(300.0), Some(700.0), Some(1410.0))
    );
    assert_eq!(
        (one.power_limit_watts_min, one.power_limit_watts_max, one.default_power_limit_watts),
        (Some(200.0), Some(700.0), Some(700.0))
    );
    assert_eq!((one.sm_clock_mhz_min, one.sm_clock_mhz_max), (Some(210.0), Some(1980.0)));
    running.until("counted", || running.metric("eadt_agent_records ") == Some(4.0)).await;

    // Settings that the next intent leaves out are restored; changed ones keep the same original.
    publish(&*bus, &asking(vec![wish(Some("GPU-fake-1"), Some(350.0), None)]));
    running
        .until("the new one", || {
            of(&fake, 1) == (350_000, 0) && of(&fake, 0) == AS_BEFORE && fake.settings(3).graphics_mhz == 1755
        })
        .await;
    running
        .until("the outcome is published", || {
            last(&*bus).devices.first().is_some_and(|d| d.power_limit_outcome == SettingOutcome::Restored)
        })
        .await;
    // Without a value the node's intent is withdrawn.
    publish_raw(&*bus, NODE, None);
    running.until("withdrawn", || of(&fake, 1) == AS_BEFORE).await;
    publish(&*bus, &asking(vec![wish(None, Some(300.0), Some(1410.0))]));
    running.until("once more", || of(&fake, 2) == (300_000, 1410)).await;
    assert!(running.stop().await.unwrap().unrestored.is_empty());
    assert!((0..4).all(|gpu| fake.settings(gpu) == FakeSettings::default()));
    let state = last(&*bus);
    assert!(state.stopped && state.live_until.is_none());
    assert!(
        state.devices.iter().all(|d| d.power_limit_outcome == SettingOutcome::Restored && d.power_limit_watts == Some(700.0))
    );
}

/// The form with one device an event: a second agent, or a second look, would know the last device only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_a_device_would_lose_all_devices_but_one() {
    let (fake, folder) = (FakeLibrary::new(""), tempfile::tempdir().unwrap());
    let bus = log(&folder.path().join("log"));
    for device in ["GPU-fake-0", "GPU-fake-1"] {
        publish(
            &*bus,
            &DeviceIntent { device: Some(device.into()), power_limit_watts: Some(300.0), devices: None, ..intent(600.0) },
        );
    }
    let state_dir = folder.path().join("state");
    let running = start(&settings(&fake, &state_dir), Some(bus.clone()));
    running.until("the last one", || of(&fake, 1) == (300_000, 0)).await;
    assert_eq!(of(&fake, 0), AS_BEFORE, "what compaction leaves of a node is its last event");
    // As a list both are there, for an agent that comes later, too.
    publish(&*bus, &asking(vec![wish(Some("GPU-fake-0"), Some(300.0), None), wish(Some("GPU-fake-1"), Some(300.0), None)]));
    running.until("both", || of(&fake, 0) == (300_000, 0) && of(&fake, 1) == (300_000, 0)).await;
    running.stop().await.unwrap();
    let running = start(&settings(&fake, &state_dir), Some(bus.clone()));
    running.until("both again", || of(&fake, 0) == (300_000, 0) && of(&fake, 1) == (300_000, 0)).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_live_intent_everything_is_put_back() {
    let (fake, folder) = (FakeLibrary::new(""), tempfile::tempdir().unwrap());
    let bus = log(&folder.path().join("log"));
    let running = start(&settings(&fake, &folder.path().join("state")), Some(bus.clone()));
    let short = |seconds| DeviceIntent { devices: Some(vec![wish(None, Some(300.0), Some(1410.0))]), ..intent(seconds) };
    publish(&*bus, &short(600.0));
    running.until("held", || of(&fake, 0) == (300_000, 1410)).await;
    publish(&*bus, &short(6.0));
    running.until("the dead man's switch", || (0..4).all(|gpu| of(&fake, gpu) == AS_BEFORE)).await;
    running.until("it publishes its stop", || last(&*bus).live_until.is_none()).await;
    assert_eq!(running.metric("eadt_agent_intent_live "), Some(0.0));

    // Late, older, future and unreadable intents are not followed.
    let now = intent(600.0).time;
    let expired = DeviceIntent { time: earlier(now, 700.0), ..short(600.0) };
    publish(&*bus, &expired);
    let future = DeviceIntent { time: earlier(now, -3600.0), ..short(600.0) };
    publish(&*bus, &future);
    publish_raw(&*bus, NODE, Some(b"{\"power_limit_watts\": -1}".to_vec()));
    // A look sees the last record of the node only; each has to be seen before the next.
    for (record, result) in [(Some(&expired), "stale"), (Some(&future), "future"), (None, "invalid")] {
        let value = record.map_or(b"{\"time_to_live_seconds\": []}".to_vec(), |intent| serde_json::to_vec(intent).unwrap());
        publish_raw(&*bus, NODE, Some(value));
        let series = format!("eadt_agent_intents_total{{result=\"{result}\"}}");
        running.until(result, || running.metric(&series).is_some_and(|count| count >= 1.0)).await;
    }
    running
        .until("a dead letter", || {
            let letters = read(&*bus, Topic::DeadLetters, "eadt.device-intents.v1");
            letters.iter().any(|letter| letter.header("eadt_refused_by") == Some("agent"))
        })
        .await;
    assert!((0..4).all(|gpu| of(&fake, gpu) == AS_BEFORE));
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_changed_is_left_alone_and_reported() {
    let (fake, folder) = (FakeLibrary::new(""), tempfile::tempdir().unwrap());
    let bus = log(&folder.path().join("log"));
    let running = start(&settings(&fake, &folder.path().join("state")), Some(bus.clone()));
    publish(&*bus, &asking(vec![wish(None, Some(300.0), Some(1410.0))]));
    running.until("held", || (0..4).all(|gpu| of(&fake, gpu) == (300_000, 1410))).await;
    running
        .until("known to be held", || {
            let devices = last(&*bus).devices;
            let held = |d: &eadt_schemas::v1::DeviceReport| {
                d.sm_clock_outcome == SettingOutcome::Held && d.power_limit_outcome == SettingOutcome::Held
            };
            devices.len() == 4 && devices.iter().all(held)
        })
        .await;
    fake.change(0, FakeSettings { power_milliwatts: 450_000, lock_mhz: 1410, ..FakeSettings::default() });
    // Clocks above the bound show that the lock is gone.
    fake.change(1, FakeSettings { power_milliwatts: 300_000, lock_mhz: 0, ..FakeSettings::default() });
    running
        .until("seen", || {
            let devices = last(&*bus).devices;
            devices.len() == 4
                && devices[0].power_limit_outcome == SettingOutcome::ChangedByOthers
                && devices[1].sm_clock_outcome == SettingOutcome::ChangedByOthers
        })
        .await;
    let devices = last(&*bus).devices;
    assert!(
        devices[0].power_limit_reason.starts_with("another program set 450 W after the agent had set 300 W"),
        "{}",
        devices[0].power_limit_reason
    );
    assert_eq!((devices[0].sm_clock_outcome, devices[1].power_limit_outcome), (SettingOutcome::Held, SettingOutcome::Held));
    // The same wish again changes nothing; another one is a new wish.
    publish(&*bus, &asking(vec![wish(None, Some(300.0), Some(1410.0))]));
    let followed = || running.metric("eadt_agent_intents_total{result=\"followed\"}");
    running.until("followed again", || followed() == Some(2.0)).await;
    assert_eq!(of(&fake, 0), (450_000, 1410));
    // The next agent leaves it alone, too.
    running.stop().await.unwrap();
    assert_eq!(of(&fake, 0), (450_000, 0));
    let running = start(&settings(&fake, &folder.path().join("state")), Some(bus.clone()));
    running.until("held by the next", || of(&fake, 0).1 == 1410 && of(&fake, 2) == (300_000, 1410)).await;
    running
        .until("reported by the next", || {
            let devices = last(&*bus).devices;
            // The outcome alone is also in the last report of the one before.
            devices.len() == 4
                && devices[0].power_limit_outcome == SettingOutcome::ChangedByOthers
                && devices[0].power_limit_reason.contains("an earlier agent")
        })
        .await;
    assert_eq!(of(&fake, 0), (450_000, 1410));
    publish(&*bus, &asking(vec![wish(None, Some(320.0), Some(1410.0))]));
    running.until("another value", || of(&fake, 0) == (320_000, 1410)).await;
    running.stop().await.unwrap();
    // The other program's values are restored.
    assert_eq!((of(&fake, 0), of(&fake, 1), of(&fake, 2)), ((450_000, 0), AS_BEFORE, AS_BEFORE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_refused_with_the_reason_and_nothing_is_touched() {
    let (fake, folder) = (FakeLibrary::new("1 unsupported 1\n2 forbidden 1\n3 ignores 1\n"), tempfile::tempdir().unwrap());
    let bus = log(&folder.path().join("log"));
    let state_dir = folder.path().join("state");
    let running = start(&settings(&fake, &state_dir), Some(bus.clone()));
    let twice = [wish(Some("GPU-fake-0"), Some(100.0), Some(1410.0)), wish(Some("GPU-fake-0"), None, Some(1500.0))];
    publish(&*bus, &asking([&twice[..], &[wish(None, Some(300.0), None)]].concat()));
    running
        .until("an answer of all", || {
            let devices = last(&*bus).devices;
            devices.len() == 4 && devices.iter().all(|d| d.power_limit_outcome != SettingOutcome::Untouched)
        })
        .await;
    let devices = last(&*bus).devices;
    let outcomes: Vec<_> = devices.iter().map(|d| (d.power_limit_outcome, d.power_limit_reason.as_str())).collect();
    assert_eq!(outcomes[0], (SettingOutcome::Refused, "100 W is not between 200 and 700 W, which this GPU takes"));
    assert_eq!(outcomes[1], (SettingOutcome::Refused, "this GPU takes no power cap"));
    assert_eq!(outcomes[2], (SettingOutcome::Failed, "set power limit failed: no permission; run the agent as root"));
    assert_eq!(outcomes[3], (SettingOutcome::Failed, "the device accepted 300 W but reports 700 W"));
    assert_eq!(
        (devices[0].sm_clock_outcome, devices[0].sm_clock_reason.as_str()),
        (SettingOutcome::Refused, "the intent requests 1410 MHz and 1500 MHz: request one")
    );
    assert!((0..4).all(|gpu| of(&fake, gpu) == AS_BEFORE));
    running.stop().await.unwrap();

    // Without a record nothing is changed: a record that cannot be read, and a disk that takes none.
    fake.set("");
    std::fs::write(state_dir.join("GPU-fake-0.json"), "{").unwrap();
    std::fs::create_dir(state_dir.join("GPU-fake-1.next")).unwrap();
    let running = start(&settings(&fake, &state_dir), Some(bus.clone()));
    publish(&*bus, &asking(vec![wish(None, Some(300.0), None)]));
    running.until("the others", || of(&fake, 2) == (300_000, 0) && of(&fake, 3) == (300_000, 0)).await;
    running
        .until("reported", || {
            let devices = last(&*bus).devices;
            devices.len() == 4
                && devices[1].power_limit_outcome == SettingOutcome::Failed
                && devices[2].power_limit_outcome == SettingOutcome::Held
        })
        .await;
    let devices = last(&*bus).devices;
    assert!(devices[0].power_limit_reason.contains("restore the device by hand"), "{}", devices[0].power_limit_reason);
    assert!(
        devices[1].power_limit_reason.ends_with("nothing is changed without a record of the original"),
        "{}",
        devices[1].power_limit_reason
    );
    assert_eq!((of(&fake, 0), of(&fake, 1)), (AS_BEFORE, AS_BEFORE));
    let left = running.stop().await.unwrap().unrestored;
    assert!(left.len() == 1 && left[0].contains("GPU-fake-0.json"), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_or_lost_gpu_holds_up_nobody() {
    let (fake, folder) = (FakeLibrary::new(""), tempfile::tempdir().unwrap());
    let bus = log(&folder.path().join("log"));
    let mut raw = settings(&fake, &folder.path().join("state"));
    (raw.agent.call_timeout_seconds, raw.agent.stop_seconds) = (0.5, 4.0);
    let running = start(&raw, Some(bus.clone()));
    publish(&*bus, &asking(vec![wish(None, Some(300.0), None)]));
    running.until("held", || (0..4).all(|gpu| of(&fake, gpu) == (300_000, 0))).await;
    fake.set("1 hang 1\n2 lost 1\n");
    let stuck = "eadt_agent_device_stuck{device=\"GPU-fake-1\"}";
    running.until("stuck", || running.metric(stuck) == Some(1.0)).await;
    running.until("lost", || running.metric("eadt_agent_device_up{device=\"GPU-fake-2\"}") == Some(0.0)).await;
    publish(&*bus, &asking(vec![wish(None, Some(250.0), None)]));
    running.until("the others follow", || of(&fake, 0) == (250_000, 0) && of(&fake, 3) == (250_000, 0)).await;
    assert_eq!((of(&fake, 1), of(&fake, 2)), ((300_000, 0), (300_000, 0)));
    running
        .until("the outcome is published", || {
            let devices = last(&*bus).devices;
            devices[1].power_limit_reason == "the device does not answer"
                && devices[2].power_limit_outcome == SettingOutcome::Failed
        })
        .await;
    fake.set("1 hang 1\n");
    running.until("it is back", || of(&fake, 2) == (250_000, 0)).await;
    // A stop waits for a hanging device no longer than it may, and reports what it leaves.
    let stopping = Instant::now();
    let left = running.stop().await.unwrap().unrestored;
    assert!(stopping.elapsed() < Duration::from_mins(1));
    assert_eq!(left, ["GPU-fake-1"]);
    assert_eq!((of(&fake, 0), of(&fake, 2), of(&fake, 3)), (AS_BEFORE, AS_BEFORE, AS_BEFORE));
    fake.set("");
    // The thread that was left behind wakes up to a stop, and does its duty.
    let deadline = Instant::now() + Duration::from_mins(2);
    while of(&fake, 1) != AS_BEFORE {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mps_default_changes_only_where_every_tenant_allows_it() {
    let (fake, folder, mps) = (FakeLibrary::new(""), tempfile::tempdir().unwrap(), FakeMps::new("33.333"));
    let bus = log(&folder.path().join("log"));
    let mut raw = settings(&fake, &folder.path().join("state"));
    let tenants = |allowed: [bool; 2]| -> DeviceIntent {
        let tenant = |(i, allows)| MpsTenant { workload: format!("n/{i}"), allows_default_change: allows };
        let mps_tenants = Some(allowed.into_iter().enumerate().map(tenant).collect());
        DeviceIntent { mps_default_thread_percentage: Some(50), mps_tenants, ..intent(600.0) }
    };
    // Unless the node's operator allows it, no program is started.
    let running = start(&raw, Some(bus.clone()));
    publish(&*bus, &tenants([true, true]));
    running.until("refused", || last(&*bus).mps_default_outcome == SettingOutcome::Refused).await;
    assert!(last(&*bus).mps_default_reason.contains("agent.mps.enabled"));
    running.stop().await.unwrap();

    allow(&mps, &mut raw);
    let running = start(&raw, Some(bus.clone()));
    publish(&*bus, &tenants([true, false]));
    let refused = "not every tenant's policy allows it: n/1";
    running.until("refused", || last(&*bus).mps_default_reason == refused).await;
    assert_eq!((mps.default().as_str(), last(&*bus).mps_default_thread_percentage), ("33.333", Some(34)));
    publish(&*bus, &tenants([true, true]));
    running.until("held", || last(&*bus).mps_default_outcome == SettingOutcome::Held).await;
    assert_eq!((mps.default().as_str(), last(&*bus).mps_default_thread_percentage), ("50", Some(50)));
    assert_eq!(last(&*bus).original_mps_default_thread_percentage, Some(34), "what will be put back");
    // A new tenant that does not allow it ends it.
    publish(&*bus, &tenants([true, false]));
    running.until("put back", || mps.default() == "33.333" && last(&*bus).mps_default_reason == refused).await;
    assert_eq!(last(&*bus).original_mps_default_thread_percentage, None);
    publish(&*bus, &tenants([true, true]));
    let held = || mps.default() == "50" && last(&*bus).mps_default_outcome == SettingOutcome::Held;
    running.until("held again", held).await;
    // A control program that did as it was asked, and never answers. It is not waited for as long as those that answer.
    publish(&*bus, &tenants([true, false]));
    running.until("put back", || mps.default() == "33.333" && last(&*bus).mps_default_reason == refused).await;
    running.stop().await.unwrap();
    raw.agent.mps.timeout_seconds = 1.0;
    let running = start(&raw, Some(bus.clone()));
    running.until("refused again", || !last(&*bus).stopped && last(&*bus).mps_default_reason == refused).await;
    std::fs::write(mps.pipe_directory().join("mute"), "").unwrap();
    publish(&*bus, &tenants([true, true]));
    running.until("no answer", || last(&*bus).mps_default_reason.contains("did not answer")).await;
    publish(&*bus, &tenants([true, false]));
    std::fs::remove_file(mps.pipe_directory().join("mute")).unwrap();
    running.until("put back", || mps.default() == "33.333" && last(&*bus).mps_default_reason == refused).await;
    publish(&*bus, &tenants([true, true]));
    running.until("held again", held).await;
    mps.change("80");
    running.until("seen", || last(&*bus).mps_default_outcome == SettingOutcome::ChangedByOthers).await;
    running.stop().await.unwrap();
    assert_eq!(mps.default(), "80");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_talks_to_the_log_is_begun_again_after_a_panic() {
    let (fake, folder) = (FakeLibrary::new(""), tempfile::tempdir().unwrap());
    let bus = log(&folder.path().join("log"));
    let (tried, connected) = (Mutex::new(BTreeMap::<String, u32>::new()), bus.clone());
    let connect = move || {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        let mut tried = tried.lock().unwrap_or_else(PoisonError::into_inner);
        let times = tried.entry(thread.clone()).or_default();
        *times += 1;
        assert!(*times > 2, "on purpose, in {thread}");
        // The first thread that connects does so for both.
        if ["outbox", "intents"].iter().all(|thread| tried.get(*thread).is_some_and(|times| *times > 2)) {
            Ok(connected.clone())
        } else {
            Err(BusError::new(Remedy::Retry, "connecting", "not yet"))
        }
    };
    let running = start_on(&settings(&fake, &folder.path().join("state")), Some(LazyBus::new(connect)));
    running.until("its state is published", || !states(&*bus).is_empty()).await;
    running.until("ready", || running.health.waiting().is_empty()).await;
    publish(&*bus, &asking(vec![wish(None, Some(400.0), None)]));
    running.until("followed", || of(&fake, 0) == (400_000, 0)).await;
    for task in ["outbox", "intents"] {
        assert_eq!(running.metric(&format!("eadt_service_task_failures_total{{task=\"{task}\"}}")), Some(2.0), "{task}");
    }
    assert!(running.stop().await.unwrap().unrestored.is_empty());
    assert_eq!(of(&fake, 0), AS_BEFORE);
    assert!(last(&*bus).stopped);
}

/// NVML, where opening the first GPU panics once.
#[derive(Debug)]
struct PanicsOnce {
    driver: NvmlDriver,
    left: AtomicBool,
}

impl SettableDriver for PanicsOnce {
    fn gpu_count(&self) -> Result<u32, GpuLost> {
        SettableDriver::gpu_count(&self.driver)
    }

    fn with_settable_gpu(&self, index: u32, body: &mut dyn FnMut(&mut dyn SettableGpu)) -> Result<(), GpuLost> {
        assert!(index != 0 || !self.left.swap(false, Ordering::SeqCst), "on purpose");
        self.driver.with_settable_gpu(index, body)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpus_thread_is_begun_again_after_a_panic() {
    let (fake, folder) = (FakeLibrary::new(""), tempfile::tempdir().unwrap());
    let bus = log(&folder.path().join("log"));
    let driver = NvmlDriver::load(Some(&fake.library()), "agent.library_path").unwrap();
    let driver = Arc::new(PanicsOnce { driver, left: AtomicBool::new(true) });
    let running = start_with(&settings(&fake, &folder.path().join("state")), &bus, driver);
    publish(&*bus, &asking(vec![wish(None, Some(400.0), None)]));
    running.until("held on all", || (0..3).all(|gpu| of(&fake, gpu) == (400_000, 0))).await;
    assert_eq!(running.metric("eadt_service_task_failures_total{task=\"gpu-holder\"}"), Some(1.0));
    assert!(running.stop().await.unwrap().unrestored.is_empty());
    assert_eq!(of(&fake, 0), AS_BEFORE);
}
