//! Real answers of dcgm-exporter, made by others; skipped if they are not at hand.

use eadt_collector::dcgm::{AttributionRules, SkipCounts, read};
use eadt_testing::shared_data;

fn text(name: &str) -> Option<String> {
    let path = shared_data("dcgm-exporter-text")?.join(name);
    Some(std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

#[test]
fn a_tesla_t4_without_help_and_type_lines() {
    let Some(text) = text("t4_ericsson.prom") else { return };
    let scraped = read(&text, &AttributionRules::default());
    assert_eq!((scraped.samples, scraped.devices.len(), scraped.foreign), (20, 1, 0));
    // It has no sensor in its memory and reports 0 °C.
    assert_eq!(scraped.skipped, SkipCounts { implausible: 1, ..SkipCounts::default() });
    let event = &scraped.devices[0].event;
    assert_eq!(event.device, "GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a");
    assert_eq!((event.gpu_model.as_deref(), event.node.as_deref()), (Some("Tesla T4"), Some("cp-bm14r7")));
    assert_eq!((event.power_watts, event.power_average_watts), (Some(68.244), None));
    assert_eq!(event.energy_joules_total, Some(15_152_422.938));
    assert_eq!(event.dram_active_ratio, Some(0.092_781));
    assert_eq!((event.utilization_ratio, event.temperature_celsius), (Some(0.91), Some(74.0)));
    assert_eq!(event.memory_temperature_celsius, None);
}

#[test]
fn an_l40s_with_help_and_type_lines() {
    let Some(text) = text("l40s_upcloud.prom") else { return };
    let scraped = read(&text, &AttributionRules::default());
    assert_eq!((scraped.samples, scraped.devices.len(), scraped.skipped.malformed), (23, 1, 0));
    let event = &scraped.devices[0].event;
    assert_eq!((event.power_watts, event.power_average_watts), (None, Some(35.686)));
    assert_eq!(event.energy_joules_total, Some(5_551_899.58));
    assert_eq!(event.dram_active_ratio, Some(0.000_131));
    assert_eq!(event.sm_clock_mhz, Some(210.0));
}

/// Lines lost, cut and doubled on the way cost what they hold and nothing else.
#[test]
fn a_damaged_answer_still_gives_the_rest() {
    let Some(text) = text("t4_ericsson.prom") else { return };
    let lines: Vec<_> = text.lines().collect();
    let whole = read(&text, &AttributionRules::default()).devices[0].event.clone();
    for cut in 0..lines.len() {
        let mut damaged = lines.clone();
        let half = &lines[cut][..lines[cut].len() / 2];
        damaged[cut] = half;
        damaged.push(lines[(cut + 1) % lines.len()]);
        let scraped = read(&damaged.join("\n"), &AttributionRules::default());
        assert_eq!((scraped.skipped.malformed, scraped.skipped.duplicate), (1, 1), "{half}");
        let event = &scraped.devices[0].event;
        let pairs = [
            (event.power_watts, whole.power_watts),
            (event.energy_joules_total, whole.energy_joules_total),
            (event.utilization_ratio, whole.utilization_ratio),
            (event.temperature_celsius, whole.temperature_celsius),
        ];
        let lost = pairs.iter().filter(|(now, before)| now != before).inspect(|(now, _)| assert_eq!(*now, None)).count();
        assert!(lost <= 1);
    }
}
