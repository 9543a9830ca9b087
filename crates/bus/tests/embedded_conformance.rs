//! The embedded log passes the checks that every backend owes.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use eadt_bus::Bus;
use eadt_bus::conformance::{BackendHarness, CHECKS};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_schemas::EventTime;

struct Embedded {
    log: EmbeddedLog,
    tight: EmbeddedLog,
    _dirs: [tempfile::TempDir; 2],
}

impl BackendHarness for Embedded {
    fn bus(&self) -> Arc<dyn Bus> {
        Arc::new(self.log.clone())
    }

    fn tight_bus(&self) -> Arc<dyn Bus> {
        Arc::new(self.tight.clone())
    }

    fn has_time_index(&self) -> bool {
        false
    }

    fn settle(&self) {
        std::thread::sleep(Duration::from_millis(100));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
        self.log.maintain(EventTime::from_micros(now)).unwrap();
    }
}

#[test]
fn the_embedded_log_keeps_every_promise() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let small = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
    let tight = EmbeddedOptions { producer_buffer_bytes: 5_000, ..small.clone() };
    let backend = Embedded {
        log: EmbeddedLog::open(dirs[0].path(), small).unwrap(),
        tight: EmbeddedLog::open(dirs[1].path(), tight).unwrap(),
        _dirs: dirs,
    };
    for (name, check) in CHECKS {
        eprintln!("{name}");
        check(&backend);
    }
}
