//! The table. One screen answers what happens when a task fails; docs/reference/tasks.md is made from it.

use crate::OnFailure::{Fatal, Report, Restart, Starter};
use crate::Task;

macro_rules! tasks {
    ($($task:ident $name:literal in $place:literal: $on_failure:ident, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub static $task: Task = Task::new($name, $place, $on_failure, $meaning);)*
        /// Every entry, in the order of the page.
        pub static ALL: &[&Task] = &[$(&$task),*];
    };
}

tasks! {
    HTTP "http" in "all": Report, "`/metrics`, `/healthz` and `/readyz` are gone, by which a prober sees it; the work goes on";
    CONNECTION "connection" in "all, one to an HTTP endpoint": Report, "that connection is closed; its client sees it and asks or sends again";
    SIGNALS "signals" in "all": Report, "no signal drains it any more: SIGKILL ends it, and it goes on where its steps stand";
    CONTINUES "continues" in "`eadt up`, `eadt top`": Report, "after a stop (`kill -STOP`) the view is not drawn anew by itself";
    COLLECTOR "collector" in "`eadt collector`, `eadt up --gpus nvml`": Fatal, "what was sampled is sent, or counted as dropped";
    NVML "nvml" in "collector": Fatal, "as the collector; a GPU that hangs or is lost is no failure of its task";
    DCGM "dcgm" in "collector": Fatal, "as the collector; an exporter that is away is no failure of its task";
    PROGRESS "progress" in "collector": Fatal, "as the collector";
    JOB "job" in "collector": Fatal, "as the collector; a job that is away is no failure of its task";
    ASSIGNMENTS "assignments" in "collector": Fatal, "as the collector";
    KUBELET "kubelet" in "collector": Fatal, "as the collector; a kubelet that is away is no failure of its task";
    DIRECTIVES "directives" in "collector": Fatal, "as the collector; a log that cannot be read is no failure of its task";
    PUBLISHER "publisher" in "collector": Fatal, "as the collector";
    GPU_SAMPLER "gpu-sampler" in "collector, a thread a GPU": Restart, "its GPU is marked down and opened again after `collector.nvml.retry_seconds`; the others go on";
    POD_FACTS "pod-facts" in "collector, a question about a pod": Restart, "the pod's workload is asked for again after ten seconds";
    NVML_OPEN "nvml-open" in "collector, node agent": Starter, "the start fails with an error; a library that hangs is left behind";
    PROCESSOR "processor" in "`eadt processor`, `eadt up`": Fatal, "the next start goes on from its last step";
    CLUSTER "cluster" in "processor, the stage of shared power": Fatal, "as the processor";
    GPU "gpu" in "processor, the stage of shared GPUs": Fatal, "as the processor";
    ACTUATOR "actuator" in "`eadt actuator`, `eadt up`": Fatal, "the next start goes on from its positions; changes are fenced by their decisions";
    KUBERNETES "kubernetes" in "actuator, its watches, statuses and intents": Fatal, "as the actuator; an API server that is away is no failure of its tasks";
    ARCHIVER "archiver" in "`eadt archiver`, `eadt up`": Fatal, "the next start goes on behind the last whole file";
    OPTIMIZER "optimizer" in "`eadt optimizer`": Fatal, "the next start learns anew";
    DASHBOARD "dashboard" in "`eadt up`, `eadt dashboard`": Report, "the page is gone; the work goes on";
    DASHBOARD_FEED "dashboard-feed" in "`eadt up`, `eadt dashboard`": Report, "the page shows nothing newer; the work goes on";
    SIMULATOR "simulator" in "`eadt actuator`, `eadt up`, simulated": Fatal, "the next start goes on from its last step";
    STAGE "stage" in "`eadt up`": Fatal, "as what it looks after";
    FOLLOWER "follower" in "`eadt up`, `eadt top`: the live view, and the closing report": Fatal, "the terminal is given back; there is no report, the error is said instead";
    EXPORTER "exporter" in "`eadt exporter`": Fatal, "the next start reads the record again; counters begin anew, as after any restart";
    OTLP "otlp" in "`eadt exporter`, `eadt up`, with `metrics.otlp.endpoint`": Report, "the receiver gets no metrics any more; the work goes on, and `/metrics` has them";
    DURATION "duration" in "`eadt up --gpus nvml --duration`": Fatal, "the run ends early rather than never";
    MAINTENANCE "maintenance" in "`eadt up`, tidying the log": Restart, "it is tried again in a minute";
    LOG_PROBE "log-probe" in "all services on Kafka": Restart, "asked again after a second; readiness stays as it was meanwhile";
    LOG_WRITER "log-writer" in "the embedded log": Fatal, "what it had not written counts as failed, and whoever appends next is told and ends";
    KAFKA_FETCH "kafka-fetch" in "Kafka, reading with `bus.fetch = \"native\"`, a thread a broker": Starter, "the reader gets an error, and whoever reads begins anew at its positions";
    KAFKA_POSITIONS "kafka-positions" in "Kafka, the end of a step": Starter, "the step counts as indeterminate: it is taken back and done again";
    KAFKA_CLOSE "kafka-close" in "Kafka, a consumer's end": Starter, "the group finds out by its session";
    OUTBOX "outbox" in "node agent": Restart, "what was not acknowledged is said again after a second";
    INTENTS "intents" in "node agent": Restart, "followed again after a second; nothing is held past its time to live";
    GPU_HOLDER "gpu-holder" in "node agent, a thread a GPU": Restart, "tried again after `agent.retry_seconds`, its device reported as failed; the others go on";
    MPS_HOLDER "mps-holder" in "node agent, a thread an MPS daemon": Restart, "tried again after `agent.retry_seconds`, reported as failed";
    MPS_CONTROL "mps-control" in "node agent, one question to an MPS daemon": Starter, "the question fails, and is asked again";
    REPLAY_READER "replay-reader" in "`eadt replay`": Starter, "the replay ends with an error";
    GPU_READER "gpu-reader" in "`eadt profile`": Starter, "the profile ends with an error";
    ORDER "order" in "`eadt profile`, prolonging what the node agent is to hold": Restart, "prolonged again after a second";
}
