//! A real Kubernetes control plane on this machine: etcd, API server with RBAC, controllers, scheduler as processes, nodes with
//! GPUs whose kubelets kwok plays. What pods do is set by annotations: `tests/control-plane/stages.yaml`.

pub mod audit;
pub mod chart;
mod flags;
mod part;
mod program;
pub mod proxy;
pub mod rights;
pub mod training;
mod worlds;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::oneshot;

pub use part::Part;
pub use program::{Tools, program, tools, version};

use crate::cache;
use crate::ports::free_ports;

const STAGES: &str = include_str!("../../control-plane/stages.yaml");
const AUDIT: &str = include_str!("../../control-plane/audit.yaml");
const READY_WITHIN: Duration = Duration::from_mins(2);
const STEP: Duration = Duration::from_millis(50);
/// How often is looked whether something ended by itself.
const REVIVE: Duration = Duration::from_secs(1);

/// Removes the data once standard input closes, which it does however this process ends.
const CLEANER: &str = r#"cat >/dev/null; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" 2>/dev/null && exit; sleep 0.5; done"#;

/// Settings of a control plane.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Nodes `gpu-0`, `gpu-1`, …
    pub nodes: u32,
    /// `nvidia.com/gpu` of each node.
    pub gpus_per_node: u32,
    /// Further flags of kube-apiserver.
    pub api_server_flags: Vec<String>,
    /// Controllers, scheduler and nodes; without them there are only etcd and the API server.
    pub controllers: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { nodes: 4, gpus_per_node: 8, api_server_flags: Vec::new(), controllers: true }
    }
}

/// A process of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    Kwok,
}

/// A running control plane. Dropping it ends it and removes its data; its logs stay in the cache folder.
#[derive(Debug)]
pub struct Kubernetes {
    // They end in this order, so that no part reports a missing API server.
    worlds: Option<oneshot::Sender<()>>,
    supervisor: Option<mpsc::SyncSender<()>>,
    parts: Vec<Arc<Part>>,
    cleaner: Option<(Child, ChildStdin)>,
    dir: PathBuf,
    logs: PathBuf,
    api_port: u16,
}

impl Kubernetes {
    /// Starts a control plane with empty data on free ports, builds its program if it is not there yet, and returns once its
    /// nodes are ready and the namespace `default` has its service account.
    pub fn start() -> Result<Self> {
        Self::start_with(&Settings::default())
    }

    /// The same, as wanted.
    pub fn start_with(settings: &Settings) -> Result<Self> {
        let program = program()?;
        let mut attempt = 1;
        loop {
            // Another process may take a port between its choice and its use.
            match Self::try_start(&program, settings) {
                Err(error) if attempt < 3 && format!("{error:#}").contains("address already in use") => attempt += 1,
                started => return started,
            }
        }
    }

    /// One for all tests of this process, started by the first who asks. Have a namespace each.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Kubernetes> = OnceLock::new();
        SHARED.get_or_init(|| Self::start().unwrap_or_else(|error| panic!("no Kubernetes: {error:#}")))
    }

    fn try_start(program: &Path, settings: &Settings) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("eadt-kubernetes-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&name);
        // Of a process that had the same id, long ago.
        cache::remove(&dir)?;
        fs::create_dir_all(&dir)?;
        let all_logs = cache::folder()?.join("kubernetes-logs");
        let logs = all_logs.join(&name);
        cache::remove(&logs)?;
        fs::create_dir_all(&logs)?;
        cache::keep_newest(&all_logs, 20);
        let ports = free_ports::<6>()?;
        let mut kubernetes =
            Self { worlds: None, supervisor: None, parts: Vec::new(), cleaner: None, dir, logs, api_port: ports[0] };
        kubernetes.cleaner = Some(kubernetes.cleaner()?);
        kubernetes.write_files(program)?;
        let parts = flags::parts(program, settings, ports, &kubernetes.dir, &kubernetes.logs);
        kubernetes.parts = parts.into_iter().map(Arc::new).collect();
        kubernetes.part(Component::Etcd).start()?;
        kubernetes.part(Component::ApiServer).start()?;
        let begun = Instant::now();
        kubernetes.wait_for_api(begun)?;
        if settings.controllers {
            for component in [Component::ControllerManager, Component::Scheduler, Component::Kwok] {
                kubernetes.part(component).start()?;
            }
            kubernetes.worlds = Some(kubernetes.watch_worlds()?);
            kubernetes.wait_for_nodes(settings, begun)?;
            kubernetes.supervisor = Some(kubernetes.supervise()?);
        }
        Ok(kubernetes)
    }

    /// `https://host:port` of the API server.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.api_port)
    }

    /// Returns the kubeconfig of a cluster administrator.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// The certificate of the authority that signed the API server's.
    pub fn authority(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// Returns a client of a cluster administrator, for the present runtime.
    pub async fn client(&self) -> Result<Client> {
        client(&self.admin_kubeconfig()).await
    }

    /// A kubeconfig with a fresh token of this service account, which has to exist.
    pub fn service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.block_on(async |client| {
            let accounts: Api<ServiceAccount> = Api::namespaced(client, namespace);
            let spec = TokenRequestSpec { expiration_seconds: Some(7200), ..TokenRequestSpec::default() };
            let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
            let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
            let answer = answer.with_context(|| format!("requesting a token for {namespace}/{name}"))?;
            answer.status.and_then(|status| status.token).context("a token request was answered without a token")
        })?;
        self.write_kubeconfig(&format!("{namespace}-{name}"), &token)
    }

    /// Makes a namespace for one test, with its service account.
    pub fn namespace(&self, prefix: &str) -> Result<String> {
        self.block_on(async |client| {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            let wanted = serde_json::from_value(json!({"metadata": {"generateName": format!("{prefix}-")}}))?;
            let made = namespaces.create(&PostParams::default(), &wanted).await?;
            let name = made.metadata.name.context("the API server names what it makes")?;
            if self.part(Component::ControllerManager).pid().is_some() {
                let accounts: Api<ServiceAccount> = Api::namespaced(client, &name);
                let begun = Instant::now();
                while accounts.get_opt("default").await?.is_none() {
                    ensure!(begun.elapsed() < READY_WITHIN, "namespace {name} got no service account");
                    tokio::time::sleep(STEP).await;
                }
            }
            Ok(name)
        })
    }

    /// Returns the output of kubectl as a cluster administrator, or its error output as an error.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(tools()?.kubectl);
        command.args(arguments).env("KUBECONFIG", self.admin_kubeconfig()).stdin(Stdio::null());
        let output = command.output().context("starting kubectl")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}", arguments.join(" "), complaint.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Applies manifests (YAML or JSON) server-side, strictly, as a cluster administrator.
    pub fn apply(&self, namespace: &str, manifests: &str) -> Result<String> {
        use std::io::Write;
        let mut command = Command::new(tools()?.kubectl);
        command
            .args(["apply", "--server-side", "--validate=strict", "-n", namespace, "-f", "-"])
            .env("KUBECONFIG", self.admin_kubeconfig())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("starting kubectl")?;
        let mut stdin = child.stdin.take().context("a pipe was asked for")?;
        // kubectl reads all of it before it writes anything.
        stdin.write_all(manifests.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Applies definitions of resources (CRDs) and waits until all there are in force: served, and explained by the published schemas,
    /// which the API server puts together some time after it serves them.
    pub fn define(&self, definitions: &str) -> Result<()> {
        let begun = Instant::now();
        self.apply("default", definitions)?;
        // Of a definition that has no conditions yet, kubectl reports that it cannot read them.
        while let Err(error) = self.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"]) {
            ensure!(error.to_string().contains("accessor error") && begun.elapsed() < READY_WITHIN, "{error}");
            std::thread::sleep(STEP);
        }
        let kinds = r#"{range .items[*]}{.spec.group}{" "}{.spec.names.kind}{range .spec.versions[?(@.served)]}{" "}{.name}{end}{"\n"}{end}"#;
        let listed = self.kubectl(&["get", "crd", "-o", &format!("jsonpath={kinds}")])?;
        for line in listed.lines() {
            let mut words = line.split_whitespace();
            let (group, kind) = words.next().zip(words.next()).context("a definition without group or kind")?;
            for version in words {
                let (path, kind) = (format!("apis/{group}/{version}"), format!("\"kind\":\"{kind}\""));
                while !self.kubectl(&["get", "--raw", "/openapi/v3"])?.contains(&format!("\"{path}\""))
                    || !self.kubectl(&["get", "--raw", &format!("/openapi/v3/{path}")])?.contains(&kind)
                {
                    ensure!(begun.elapsed() < READY_WITHIN, "the schema of {line} is not published");
                    std::thread::sleep(STEP);
                }
            }
        }
        Ok(())
    }

    /// All different requests of service accounts so far (Kubernetes' own left out).
    pub fn requests(&self) -> Result<BTreeSet<audit::Request>> {
        audit::read(&self.dir.join("audit.log"))
    }

    /// A process of it.
    pub fn part(&self, component: Component) -> &Part {
        &self.parts[component as usize]
    }

    /// Returns the folder of the logs, which also exists after its end.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Ends a component in good order; its data stay.
    pub fn stop(&self, component: Component) -> Result<()> {
        self.part(component).stop(Duration::from_secs(15))
    }

    /// Kills a component (SIGKILL); its data stay.
    pub fn kill(&self, component: Component) -> Result<()> {
        self.part(component).kill()
    }

    /// Starts a component that was stopped or killed, and waits until the API server is ready if it is that or etcd.
    pub fn start_again(&self, component: Component) -> Result<()> {
        self.part(component).start()?;
        if matches!(component, Component::Etcd | Component::ApiServer) && self.part(Component::ApiServer).pid().is_some() {
            self.wait_for_api(Instant::now())?;
        }
        Ok(())
    }

    fn cleaner(&self) -> Result<(Child, ChildStdin)> {
        let mut child = Command::new("sh")
            .args(["-c", CLEANER, "cleaner"])
            .arg(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting sh")?;
        let stdin = child.stdin.take().context("a pipe was asked for")?;
        Ok((child, stdin))
    }

    fn write_files(&self, program: &Path) -> Result<()> {
        run(Command::new(program).arg("keys").arg(&self.dir))?;
        let mut stages = run(Command::new(program).arg("node-stages"))?;
        stages.push_str("\n---\n");
        stages.push_str(STAGES);
        fs::write(self.dir.join("stages.yaml"), stages)?;
        fs::write(self.dir.join("audit.yaml"), AUDIT)?;
        let mut tokens = String::new();
        for (number, (name, user, groups)) in [
            ("admin", "admin", "system:masters"),
            // The names that the roles of Kubernetes itself are bound to.
            ("controllers", "system:kube-controller-manager", ""),
            ("scheduler", "system:kube-scheduler", ""),
            ("kwok", "kwok", "system:masters"),
        ]
        .into_iter()
        .enumerate()
        {
            let token = random_token()?;
            tokens.extend([token.as_str(), ",", user, ",", &number.to_string(), ",", groups, "\n"]);
            self.write_kubeconfig(name, &token)?;
        }
        fs::write(self.dir.join("tokens.csv"), tokens)?;
        let scheduler = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            "clientConnection": {"kubeconfig": self.dir.join("scheduler.kubeconfig"), "qps": 500, "burst": 1000},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
        });
        fs::write(self.dir.join("scheduler.yaml"), scheduler.to_string())?;
        Ok(())
    }

    fn write_kubeconfig(&self, name: &str, token: &str) -> Result<PathBuf> {
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url(), "certificate-authority": self.authority()}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name, "namespace": "default"}}],
            "current-context": "test",
        });
        let path = self.dir.join(format!("{name}.kubeconfig"));
        fs::write(&path, text.to_string())?;
        Ok(path)
    }

    fn wait_for_api(&self, begun: Instant) -> Result<()> {
        self.block_on(async |client| {
            loop {
                let request = http::Request::get("/readyz").body(Vec::new())?;
                let answer = tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await;
                if let Ok(Ok(text)) = &answer
                    && text == "ok"
                {
                    return Ok(());
                }
                self.part(Component::Etcd).check()?;
                let api = self.part(Component::ApiServer);
                api.check()?;
                if begun.elapsed() > READY_WITHIN {
                    let (within, log) = (READY_WITHIN.as_secs(), api.log().display());
                    bail!("the API server is not ready after {within} s; its log is {log}:\n{}", api.last_lines());
                }
                tokio::time::sleep(STEP).await;
            }
        })
    }

    fn wait_for_nodes(&self, settings: &Settings, begun: Instant) -> Result<()> {
        self.block_on(async |client| {
            let nodes: Api<Node> = Api::all(client.clone());
            for number in 0..settings.nodes {
                nodes.create(&PostParams::default(), &node(number, settings.gpus_per_node)?).await?;
            }
            let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
            loop {
                for part in &self.parts {
                    part.check()?;
                }
                let listed = nodes.list(&kube::api::ListParams::default()).await?;
                let ready = listed.items.iter().filter(|node| is_ready(node)).count();
                if ready == settings.nodes as usize && accounts.get_opt("default").await?.is_some() {
                    return Ok(());
                }
                if begun.elapsed() > READY_WITHIN {
                    let logs = self.logs.display();
                    bail!("{ready} of {} nodes are ready after {} s; logs are in {logs}", settings.nodes, READY_WITHIN.as_secs());
                }
                tokio::time::sleep(STEP).await;
            }
        })
    }

    /// Starts again what ends by itself, as the supervisor of every cluster does: the scheduler exits on purpose if its cache
    /// contradicts what it hears after an outage of the API server. What a test stopped stays stopped.
    fn supervise(&self) -> Result<mpsc::SyncSender<()>> {
        let (stop, stopped) = mpsc::sync_channel::<()>(1);
        let parts: Vec<_> = [Component::ControllerManager, Component::Scheduler, Component::Kwok]
            .into_iter()
            .map(|component| self.parts[component as usize].clone())
            .collect();
        std::thread::Builder::new().name("supervisor".to_owned()).spawn(move || {
            while stopped.recv_timeout(REVIVE) == Err(mpsc::RecvTimeoutError::Timeout) {
                for part in &parts {
                    if let Err(error) = part.revive() {
                        eprintln!("{} cannot be started again: {error:#}", part.name());
                    }
                }
            }
        })?;
        Ok(stop)
    }

    fn watch_worlds(&self) -> Result<oneshot::Sender<()>> {
        let (stop, stopped) = oneshot::channel::<()>();
        let kubeconfig = self.admin_kubeconfig();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("worlds".to_owned()).spawn(move || {
            runtime.block_on(async {
                let watch = async {
                    match client(&kubeconfig).await {
                        Ok(client) => worlds::watch(client).await,
                        Err(error) => eprintln!("worlds are not watched: {error:#}"),
                    }
                };
                tokio::select! {
                    () = watch => {}
                    // Sent or dropped, both mean the end.
                    _ = stopped => {}
                }
            });
        })?;
        Ok(stop)
    }

    /// Runs a task on a runtime of its own, so that it can be called from inside another one.
    fn block_on<T: Send>(&self, task: impl AsyncFnOnce(Client) -> Result<T> + Send) -> Result<T> {
        let kubeconfig = self.admin_kubeconfig();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async { task(client(&kubeconfig).await?).await })
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        self.worlds.take();
        self.supervisor.take();
        for part in self.parts.iter().rev() {
            if let Err(error) = part.kill() {
                eprintln!("{} may still run: {error:#}", part.name());
            }
        }
        if let Some((mut cleaner, stdin)) = self.cleaner.take() {
            drop(stdin);
            if let Err(error) = cleaner.wait() {
                eprintln!("{} may stay behind: {error}", self.dir.display());
            }
        }
    }
}

/// A client for the present runtime with a kubeconfig.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn node(number: u32, gpus: u32) -> Result<Node> {
    let name = format!("gpu-{number}");
    let resources = json!({"cpu": "64", "memory": "512Gi", "pods": "2000", "nvidia.com/gpu": gpus.to_string()});
    let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDR": format!("10.1.{number}.0/24")},
        "status": {"capacity": resources, "allocatable": resources},
    }))?)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let tainted = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).next().is_some();
    !tainted && conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the output of a program.
fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn random_token() -> Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
