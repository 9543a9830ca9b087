//! Derives the target of each device from a node's intent. Pure.

use std::collections::BTreeMap;

use eadt_schemas::v1::{DeviceIntent, DeviceSetting, MpsTenant};

/// A requested value, or the reason why it cannot be followed.
pub type RequestedValue = Option<Result<f64, String>>;

/// The requested settings of one device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DesiredDeviceSettings {
    pub decision_id: Option<String>,
    pub power_limit_watts: RequestedValue,
    pub sm_clock_mhz: RequestedValue,
}

/// The requested settings of a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DesiredNodeSettings {
    /// Devices by UUID.
    named: BTreeMap<String, DesiredDeviceSettings>,
    /// All other devices.
    others: DesiredDeviceSettings,
    /// Default thread percentage of MPS.
    pub mps_default_thread_percentage: Option<Result<u32, String>>,
}

impl DesiredNodeSettings {
    pub fn of(intent: &DeviceIntent) -> Self {
        let short = || {
            let DeviceIntent { device, power_limit_watts, sm_clock_mhz, .. } = intent.clone();
            vec![DeviceSetting { device, power_limit_watts, sm_clock_mhz, ..DeviceSetting::default() }]
        };
        let mut desired = Self {
            mps_default_thread_percentage: intent
                .mps_default_thread_percentage
                .map(|percentage| check_tenants(intent.mps_tenants.as_deref().unwrap_or_default()).map(|()| percentage)),
            ..Self::default()
        };
        for setting in intent.devices.clone().unwrap_or_else(short) {
            let decision_id = setting.decision_id.unwrap_or_else(|| intent.decision_id.clone());
            // An empty name is an absent one.
            let of = match setting.device.filter(|device| !device.is_empty()) {
                Some(device) => desired.named.entry(device).or_default(),
                None => &mut desired.others,
            };
            merge_request(&mut of.power_limit_watts, setting.power_limit_watts, "W");
            merge_request(&mut of.sm_clock_mhz, setting.sm_clock_mhz, "MHz");
            of.decision_id = Some(decision_id);
        }
        desired
    }

    /// Returns the requested settings of a device.
    pub fn of_device(&self, uuid: &str) -> &DesiredDeviceSettings {
        self.named.get(uuid).unwrap_or(&self.others)
    }

    /// Devices that are named.
    pub fn named_devices(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }
}

/// Adds a requested value. Two different values for one setting are refused, since the agent cannot decide which one is right.
fn merge_request(requested: &mut RequestedValue, value: Option<f64>, unit: &str) {
    let Some(value) = value else { return };
    *requested = Some(match requested.take() {
        None => Ok(value),
        Some(Ok(before)) if before == value => Ok(value),
        Some(Ok(before)) => Err(format!("the intent requests {before} {unit} and {value} {unit}: request one")),
        Some(Err(reason)) => Err(reason),
    });
}

fn check_tenants(tenants: &[MpsTenant]) -> Result<(), String> {
    if tenants.is_empty() {
        return Err("the intent does not name the workloads that share the node's GPUs (mps_tenants)".to_owned());
    }
    let against: Vec<&str> = tenants.iter().filter(|t| !t.allows_default_change).map(|t| t.workload.as_str()).collect();
    if against.is_empty() { Ok(()) } else { Err(format!("not every tenant's policy allows it: {}", against.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(device: Option<&str>, watts: Option<f64>) -> DeviceSetting {
        DeviceSetting { device: device.map(str::to_owned), power_limit_watts: watts, ..DeviceSetting::default() }
    }

    fn intent(devices: Option<Vec<DeviceSetting>>) -> DeviceIntent {
        DeviceIntent { decision_id: "d".into(), power_limit_watts: Some(500.0), devices, ..DeviceIntent::default() }
    }

    #[test]
    fn the_named_device_first_then_all_others() {
        let wish = DesiredNodeSettings::of(&intent(Some(vec![
            setting(None, Some(250.0)),
            setting(Some("a"), None),
            setting(Some("b"), Some(300.0)),
        ])));
        let watts = |device| wish.of_device(device).power_limit_watts.clone();
        assert_eq!((watts("a"), watts("b"), watts("c")), (None, Some(Ok(300.0)), Some(Ok(250.0))));
        assert_eq!(wish.named_devices().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn the_short_form_is_a_list_of_one_and_does_not_count_beside_a_list() {
        let watts = |intent: &DeviceIntent, device| DesiredNodeSettings::of(intent).of_device(device).power_limit_watts.clone();
        assert_eq!(watts(&intent(None), "x"), Some(Ok(500.0)));
        let one = DeviceIntent { device: Some("a".into()), ..intent(None) };
        assert_eq!((watts(&one, "a"), watts(&one, "b")), (Some(Ok(500.0)), None));
        assert_eq!(watts(&intent(Some(Vec::new())), "x"), None);
    }

    #[test]
    fn two_different_wishes_for_one_thing_are_refused() {
        let twice =
            intent(Some(vec![setting(Some("a"), Some(300.0)), setting(Some("a"), Some(250.0)), setting(Some("b"), Some(1.0))]));
        let wish = DesiredNodeSettings::of(&twice);
        let refused = wish.of_device("a").power_limit_watts.clone().unwrap().unwrap_err();
        assert_eq!(refused, "the intent requests 300 W and 250 W: request one");
        assert_eq!(wish.of_device("b").power_limit_watts, Some(Ok(1.0)));
        let same = intent(Some(vec![setting(Some("a"), Some(300.0)), setting(Some("a"), Some(300.0))]));
        assert_eq!(DesiredNodeSettings::of(&same).of_device("a").power_limit_watts, Some(Ok(300.0)));
    }

    #[test]
    fn the_mps_default_needs_every_tenants_word() {
        let tenant = |name: &str, allows| MpsTenant { workload: name.into(), allows_default_change: allows };
        let ask = |tenants: Option<Vec<MpsTenant>>| {
            let intent = DeviceIntent { mps_default_thread_percentage: Some(50), mps_tenants: tenants, ..intent(None) };
            DesiredNodeSettings::of(&intent).mps_default_thread_percentage.unwrap()
        };
        assert_eq!(ask(Some(vec![tenant("n/a", true), tenant("n/b", true)])), Ok(50));
        let refused = ask(Some(vec![tenant("n/a", true), tenant("n/b", false)])).unwrap_err();
        assert_eq!(refused, "not every tenant's policy allows it: n/b");
        assert!(ask(None).is_err() && ask(Some(Vec::new())).is_err());
    }
}
