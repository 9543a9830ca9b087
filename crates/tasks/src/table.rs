//! The table of all tasks and the consequences of their failures; docs/reference/tasks.md is generated from it.

use crate::OnFailure::{Fatal, Report, Restart, Starter};
use crate::TaskEntry;

macro_rules! tasks {
    ($($task:ident $name:literal in $place:literal: $on_failure:ident, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub static $task: TaskEntry = TaskEntry::new($name, $place, $on_failure, $meaning);)*
        /// Every entry, in the order of the page.
        pub static ALL: &[&TaskEntry] = &[$(&$task),*];
    };
}

tasks! {
    HTTP "http" in "all": Report, "`/metrics`, `/healthz` and `/readyz` do not answer, which probes notice; the service continues";
    CONNECTION "connection" in "all, one to an HTTP endpoint": Report, "this connection is closed; its client notices and repeats the request";
    SIGNALS "signals" in "all": Report, "signals no longer drain it: SIGKILL ends it, and the next start resumes from its last step";
    CONTINUES "continues" in "`eadt up`, `eadt top`": Report, "after a stop (`kill -STOP`) the view is not redrawn by itself";
    COLLECTOR "collector" in "`eadt collector`, `eadt up --gpus nvml`": Fatal, "sampled events are sent, or counted as dropped";
    NVML "nvml" in "collector": Fatal, "as the collector; a GPU that hangs or is lost is no failure of its task";
    DCGM "dcgm" in "collector": Fatal, "as the collector; an unavailable exporter is no failure of its task";
    PROGRESS "progress" in "collector": Fatal, "as the collector";
    JOB "job" in "collector": Fatal, "as the collector; an unavailable job is no failure of its task";
    ASSIGNMENTS "assignments" in "collector": Fatal, "as the collector";
    KUBELET "kubelet" in "collector": Fatal, "as the collector; an unavailable kubelet is no failure of its task";
    DIRECTIVES "directives" in "collector": Fatal, "as the collector; a log that cannot be read is no failure of its task";
    PUBLISHER "publisher" in "collector": Fatal, "as the collector";
    GPU_SAMPLER "gpu-sampler" in "collector, one thread per GPU": Restart, "its GPU is marked down and opened again after `collector.nvml.retry_seconds`; the others continue";
    POD_FACTS "pod-facts" in "collector, a lookup of a pod": Restart, "the pod's workload is looked up again after ten seconds";
    NVML_OPEN "nvml-open" in "collector, node agent": Starter, "the start fails with an error; the thread of a library that hangs is abandoned";
    PROCESSOR "processor" in "`eadt processor`, `eadt up`": Fatal, "the next start resumes from its last step";
    POWER_BUDGET "power-budget" in "processor, the joint stage of the power budget": Fatal, "as the processor";
    GPU_SHARING "gpu-sharing" in "processor, the joint stage of GPU sharing": Fatal, "as the processor";
    ACTUATOR "actuator" in "`eadt actuator`, `eadt up`": Fatal, "the next start resumes from its positions; changes are fenced by their decisions";
    KUBERNETES "kubernetes" in "actuator, its watches, statuses and intents": Fatal, "as the actuator; an unavailable API server is no failure of its tasks";
    ARCHIVER "archiver" in "`eadt archiver`, `eadt up`": Fatal, "the next start resumes after the last complete file";
    OPTIMIZER "optimizer" in "`eadt optimizer`": Fatal, "the next start trains again";
    DASHBOARD "dashboard" in "`eadt up`, `eadt dashboard`": Report, "the web page does not answer; the services continue";
    DASHBOARD_FEED "dashboard-feed" in "`eadt up`, `eadt dashboard`": Report, "the web page shows nothing newer; the services continue";
    SIMULATOR "simulator" in "`eadt actuator`, `eadt up`, simulated": Fatal, "the next start resumes from its last step";
    STAGE "stage" in "`eadt up`": Fatal, "as the task that it supervises";
    FOLLOWER "follower" in "`eadt up`, `eadt top`: the live view, and the closing report": Fatal, "the terminal is restored; the error is printed instead of the report";
    EXPORTER "exporter" in "`eadt exporter`": Fatal, "the next start reads the log again; workloads have no series until it was read";
    OTLP "otlp" in "`eadt exporter`, `eadt up`, with `metrics.otlp.endpoint`": Report, "the receiver gets no more metrics; the service continues, and `/metrics` has them";
    DURATION "duration" in "`eadt up --gpus nvml --duration`": Fatal, "the run ends early, so that it does not run forever";
    MAINTENANCE "maintenance" in "`eadt up`, maintenance of the log": Restart, "it is tried again after a minute";
    LOG_PROBE "log-probe" in "all services on Kafka": Restart, "the probe is repeated after a second; readiness does not change until then";
    LOG_WRITER "log-writer" in "the embedded log": Fatal, "unwritten records count as failed, and the next append fails, which ends its caller";
    KAFKA_FETCH "kafka-fetch" in "Kafka, reading with `bus.fetch = \"native\"`, one thread per broker": Starter, "the reader gets an error, and the service reads again from its positions";
    KAFKA_POSITIONS "kafka-positions" in "Kafka, the end of a step": Starter, "the outcome of the step is unknown: it is aborted and repeated";
    KAFKA_CLOSE "kafka-close" in "Kafka, closing a consumer": Starter, "the group notices when the session expires";
    OUTBOX "outbox" in "node agent": Restart, "unacknowledged records are sent again after a second";
    INTENTS "intents" in "node agent": Restart, "they are read again after a second; no setting is held past its time to live";
    GPU_HOLDER "gpu-holder" in "node agent, one thread per GPU": Restart, "it is tried again after `agent.retry_seconds`, and its device is reported as failed; the others continue";
    MPS_HOLDER "mps-holder" in "node agent, one thread per MPS daemon": Restart, "it is tried again after `agent.retry_seconds`, and reported as failed";
    MPS_CONTROL "mps-control" in "node agent, one command to an MPS daemon": Starter, "the command fails, and is repeated";
    REPLAY_READER "replay-reader" in "`eadt replay`": Starter, "the replay ends with an error";
    REPLAY_FOLD "replay-fold" in "`eadt replay` of archives, a thread for each core, partition after partition": Starter, "the replay ends with an error";
    GPU_READER "gpu-reader" in "`eadt profile`": Starter, "the profile ends with an error";
    ORDER "order" in "`eadt profile`, renewing the node agent's intent": Restart, "the intent is renewed again after a second";
}
