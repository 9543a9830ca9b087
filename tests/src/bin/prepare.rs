//! Fetches and builds what the tests with real parts need, so that no test has to wait for it: Apache Kafka, the Kubernetes
//! control plane, kubectl and helm, and the training frameworks of the Python package. What is there already is left as it is.

use std::time::Instant;

use anyhow::Result;
use eadt_tests::{kafka, kubernetes, python};

fn main() -> Result<()> {
    let step = |what: &str, make: &dyn Fn() -> Result<std::path::PathBuf>| -> Result<()> {
        let begun = Instant::now();
        let path = make()?;
        println!("{what}: {} ({:.0} s)", path.display(), begun.elapsed().as_secs_f64());
        Ok(())
    };
    step("Apache Kafka", &kafka::fetch)?;
    step("kubectl and helm", &|| Ok(kubernetes::tools()?.kubectl))?;
    step("Kubernetes control plane", &kubernetes::program)?;
    step("training frameworks", &|| Ok(python::training_interpreter()?.unwrap_or_else(|| "not to be had here".into())))
}
