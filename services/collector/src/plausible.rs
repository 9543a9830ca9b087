//! Readings that cannot be are left out, one by one, so that one broken sensor does not cost the sample. Pure.

use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::latest::GpuTelemetry;

/// Removes zeros that a working sensor never gives: drivers and exporters report zero for "not supported".
fn zeros(event: &mut GpuTelemetry, removed: &mut Vec<&'static str>) {
    for (field, value) in [
        ("power_watts", &mut event.power_watts),
        ("power_average_watts", &mut event.power_average_watts),
        ("power_limit_watts", &mut event.power_limit_watts),
        ("energy_joules_total", &mut event.energy_joules_total),
        ("memory_temperature_celsius", &mut event.memory_temperature_celsius),
    ] {
        if *value == Some(0.0) {
            *value = None;
            removed.push(field);
        }
    }
    if event.memory_total_bytes == Some(0) {
        event.memory_total_bytes = None;
        removed.push("memory_total_bytes");
    }
}

fn reading<'a>(event: &'a mut GpuTelemetry, field: &str) -> Option<&'a mut Option<f64>> {
    Some(match field {
        "power_watts" => &mut event.power_watts,
        "power_average_watts" => &mut event.power_average_watts,
        "power_limit_watts" => &mut event.power_limit_watts,
        "energy_joules_total" => &mut event.energy_joules_total,
        "utilization_ratio" => &mut event.utilization_ratio,
        "memory_utilization_ratio" => &mut event.memory_utilization_ratio,
        "graphics_active_ratio" => &mut event.graphics_active_ratio,
        "sm_active_ratio" => &mut event.sm_active_ratio,
        "sm_occupancy_ratio" => &mut event.sm_occupancy_ratio,
        "tensor_active_ratio" => &mut event.tensor_active_ratio,
        "fp32_active_ratio" => &mut event.fp32_active_ratio,
        "dram_active_ratio" => &mut event.dram_active_ratio,
        "pcie_transmit_bytes_per_second" => &mut event.pcie_transmit_bytes_per_second,
        "pcie_receive_bytes_per_second" => &mut event.pcie_receive_bytes_per_second,
        "sm_clock_mhz" => &mut event.sm_clock_mhz,
        "memory_clock_mhz" => &mut event.memory_clock_mhz,
        "temperature_celsius" => &mut event.temperature_celsius,
        "memory_temperature_celsius" => &mut event.memory_temperature_celsius,
        _ => return None,
    })
}

/// Removes power that the metered device cannot draw.
fn impossible_power(event: &mut GpuTelemetry, removed: &mut Vec<&'static str>) {
    let meter = event.meter;
    for (field, value) in [
        ("power_watts", &mut event.power_watts),
        ("power_average_watts", &mut event.power_average_watts),
        ("power_limit_watts", &mut event.power_limit_watts),
    ] {
        // The checks of the event find values that are no numbers.
        if value.is_some_and(|watts| watts > 0.0 && !meter.can_draw(watts)) {
            *value = None;
            removed.push(field);
        }
    }
}

/// Removes impossible readings; returns their fields. Other errors (a name, a time) are not readings.
pub fn leave_out_impossible(event: &mut GpuTelemetry) -> Vec<&'static str> {
    let mut removed = Vec::new();
    zeros(event, &mut removed);
    impossible_power(event, &mut removed);
    while let Err(refusal) = event.check() {
        let Some(field) = refusal.field else { break };
        let Some(value) = reading(event, field) else { break };
        *value = None;
        removed.push(field);
    }
    removed
}

/// Returns whether any sensor answered.
pub fn has_reading(event: &GpuTelemetry) -> bool {
    let readings = [
        event.power_watts,
        event.power_average_watts,
        event.power_limit_watts,
        event.energy_joules_total,
        event.utilization_ratio,
        event.memory_utilization_ratio,
        event.graphics_active_ratio,
        event.sm_active_ratio,
        event.sm_occupancy_ratio,
        event.tensor_active_ratio,
        event.fp32_active_ratio,
        event.dram_active_ratio,
        event.pcie_transmit_bytes_per_second,
        event.pcie_receive_bytes_per_second,
        event.sm_clock_mhz,
        event.memory_clock_mhz,
        event.temperature_celsius,
        event.memory_temperature_celsius,
    ];
    event.memory_used_bytes.is_some() || event.processes.is_some() || readings.iter().any(Option::is_some)
}

#[cfg(test)]
mod tests {
    use eadt_schemas::EventTime;
    use eadt_schemas::v1::Meter;

    use super::*;

    #[test]
    fn only_the_impossible_readings_go() {
        let mut event = GpuTelemetry {
            time: EventTime::from_micros(1),
            device: "GPU-a".into(),
            collector: "c".into(),
            power_watts: Some(f64::NAN),
            power_average_watts: Some(300.0),
            energy_joules_total: Some(0.0),
            memory_temperature_celsius: Some(0.0),
            temperature_celsius: Some(0.0),
            utilization_ratio: Some(7.0),
            sm_clock_mhz: Some(-1.0),
            ..GpuTelemetry::default()
        };
        let mut removed = leave_out_impossible(&mut event);
        removed.sort_unstable();
        assert_eq!(
            removed,
            ["energy_joules_total", "memory_temperature_celsius", "power_watts", "sm_clock_mhz", "utilization_ratio"]
        );
        assert_eq!((event.power_average_watts, event.temperature_celsius), (Some(300.0), Some(0.0)));
        assert!(event.check().is_ok() && has_reading(&event));
    }

    #[test]
    fn power_that_a_board_cannot_draw_goes() {
        for (meter, watts, kept) in [
            (Meter::Gpu, 300_000.0, false),
            (Meter::Gpu, 5_000.1, false),
            (Meter::Gpu, 1_400.0, true),
            (Meter::Module, 9_000.0, true),
            (Meter::Module, 300_000.0, false),
            (Meter::Node, 14_000.0, true),
            (Meter::Wall, 300_000.0, true),
        ] {
            let mut event = GpuTelemetry { meter, power_watts: Some(watts), ..GpuTelemetry::default() };
            leave_out_impossible(&mut event);
            assert_eq!(event.power_watts.is_some(), kept, "{meter:?} {watts}");
        }
    }

    #[test]
    fn no_answer_is_no_reading() {
        assert!(!has_reading(&GpuTelemetry { device: "GPU-a".into(), ..GpuTelemetry::default() }));
    }
}
