//! Changing settings through the real binding, against a library of our own.

use eadt_nvml::NvmlDriver;
use eadt_nvml::fake::{FakeLibrary, FakeSettings};
use eadt_nvml::set::{ApplicationClocks, ClockMechanism, ClockReading, GpuSettingError, SettableDriver, SettableGpu};

fn on<T>(fake: &FakeLibrary, gpu: u32, body: impl FnOnce(&mut dyn SettableGpu) -> T) -> T {
    let driver = NvmlDriver::load(Some(&fake.library()), "x").unwrap();
    assert_eq!(SettableDriver::gpu_count(&driver).unwrap(), 4);
    let (mut body, mut result) = (Some(body), None);
    driver.with_settable_gpu(gpu, &mut |gpu| result = Some((body.take().unwrap())(gpu))).unwrap();
    result.unwrap()
}

#[test]
fn what_is_set_is_in_force_and_outlives_the_driver() {
    let fake = FakeLibrary::new("");
    on(&fake, 1, |gpu| {
        assert_eq!((gpu.identity().uuid.as_str(), gpu.persistent()), ("GPU-fake-1", Some(true)));
        let power = gpu.limits().power.unwrap();
        assert_eq!((power.min_milliwatts, power.max_milliwatts, power.default_milliwatts), (200_000, 700_000, Some(700_000)));
        let clock = gpu.limits().clock.clone().unwrap();
        assert_eq!((clock.mechanism, clock.supported_mhz[0], clock.supported_mhz[118]), (ClockMechanism::Locked, 210, 1980));
        assert_eq!(gpu.power_limit_milliwatts(), Ok(700_000));
        gpu.set_power_limit_milliwatts(300_000).unwrap();
        gpu.bound_clock(1410).unwrap();
        assert_eq!(gpu.clock(), Ok(ClockReading::Locked { sm_clock_mhz: Some(1410) }));
        let error = gpu.set_power_limit_milliwatts(100_000).unwrap_err();
        assert_eq!(error.to_string(), "set power limit failed: the GPU refuses this value");
    });
    on(&fake, 1, |gpu| assert_eq!(gpu.power_limit_milliwatts(), Ok(300_000)));
    let expected = FakeSettings { power_milliwatts: 300_000, lock_mhz: 1410, ..FakeSettings::default() };
    assert_eq!((fake.settings(1), fake.settings(0)), (expected, FakeSettings::default()));
    on(&fake, 1, |gpu| gpu.restore_clock(None).unwrap());
    assert_eq!(fake.settings(1).lock_mhz, 0);
}

#[test]
fn older_boards_have_application_clocks_which_can_be_read() {
    let fake = FakeLibrary::new("0 old 1\n");
    on(&fake, 0, |gpu| {
        assert_eq!(gpu.limits().clock.as_ref().unwrap().mechanism, ClockMechanism::Application);
        let before = ApplicationClocks { memory_mhz: 2619, graphics_mhz: 1755 };
        assert_eq!(gpu.clock(), Ok(ClockReading::Application(before)));
        gpu.bound_clock(1200).unwrap();
        assert_eq!(fake.settings(0).graphics_mhz, 1200);
        gpu.restore_clock(Some(before)).unwrap();
        assert_eq!(gpu.clock(), Ok(ClockReading::Application(before)));
    });
}

#[test]
fn what_cannot_be_set_is_reported() {
    let fake = FakeLibrary::new("0 unsupported 1\n1 forbidden 1\n2 set_fails 1\n");
    on(&fake, 0, |gpu| {
        assert_eq!((gpu.limits().power, gpu.limits().clock.is_some()), (None, false));
        assert_eq!(gpu.bound_clock(1410), Err(GpuSettingError::Unsupported { call: "clocks" }));
        assert!(matches!(gpu.set_power_limit_milliwatts(300_000), Err(GpuSettingError::Unsupported { .. })));
    });
    on(&fake, 1, |gpu| {
        let error = gpu.set_power_limit_milliwatts(300_000).unwrap_err();
        assert_eq!(error.to_string(), "set power limit failed: no permission; run the agent as root");
    });
    on(&fake, 2, |gpu| {
        assert!(matches!(gpu.bound_clock(1410), Err(GpuSettingError::Failed { call: "lock clocks", .. })));
        fake.set("2 lost 1\n");
        assert!(matches!(gpu.power_limit_milliwatts(), Err(GpuSettingError::Lost(_))));
    });
    assert!((0..4).all(|gpu| fake.settings(gpu) == FakeSettings::default()));
}
