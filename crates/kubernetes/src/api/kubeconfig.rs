//! The kubeconfig: its files are read up to a bound, and its errors name places and kinds, never values. It holds tokens, passwords
//! and keys.

use std::env;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use eadt_service::files::{self, SMALL_BYTES};
use kube::Client;
use kube::config::{AuthInfo, Cluster, Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use secrecy::{ExposeSecret, SecretString};

use super::client::error_text;

/// Returns the configuration of a context (`None` for the current one) in the files of `KUBECONFIG`, or in `~/.kube/config`.
pub async fn from_context(context: Option<&str>) -> Result<Config, String> {
    load(&paths()?, context).await
}

/// Returns the configuration of the current context, or else of the cluster that this process runs in.
pub async fn infer() -> Result<Config, String> {
    let mut config = match from_context(None).await {
        Ok(config) => config,
        Err(kubeconfig) => Config::incluster().map_err(|in_cluster| format!("{kubeconfig}; in-cluster: {in_cluster}"))?,
    };
    config.apply_debug_overrides();
    Ok(config)
}

/// Returns a client. The error names the credential plugin if one failed.
pub async fn client(config: Config) -> Result<Client, String> {
    let plugin = config.auth_info.exec.as_ref().and_then(|exec| exec.command.clone());
    // A plugin is waited for, and the client panics on a token of it that no header can carry.
    match tokio::task::spawn_blocking(move || Client::try_from(config)).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(error @ kube::Error::Auth(_))) => match plugin {
            Some(plugin) => Err(format!("{plugin}: {}", error_text(&error))),
            None => Err(error_text(&error)),
        },
        Ok(Err(error)) => Err(error_text(&error)),
        Err(_) => Err("the token of the credential plugin cannot be sent: it has a line break or a control character".to_owned()),
    }
}

/// Returns the files of `KUBECONFIG`, or else the default one.
fn paths() -> Result<Vec<PathBuf>, String> {
    let listed: Vec<PathBuf> = env::var_os("KUBECONFIG").iter().flat_map(env::split_paths).collect();
    let named: Vec<PathBuf> = listed.into_iter().filter(|path| !path.as_os_str().is_empty()).collect();
    if !named.is_empty() {
        return Ok(named);
    }
    let home = env::home_dir().ok_or("there is no KUBECONFIG and no home folder")?;
    Ok(vec![home.join(".kube").join("config")])
}

async fn load(paths: &[PathBuf], context: Option<&str>) -> Result<Config, String> {
    let mut kubeconfig = Kubeconfig::default();
    for path in paths {
        let next = read_file(path)?;
        kubeconfig = kubeconfig.merge(next).map_err(|error| describe(path, &error))?;
    }
    read_named_files(&mut kubeconfig, context)?;
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let first = paths.first().map_or(Path::new(""), PathBuf::as_path);
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| describe(first, &error))
}

/// Reads one file. Relative paths in it begin at its folder.
fn read_file(path: &Path) -> Result<Kubeconfig, String> {
    let cannot = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let bytes = files::read_bytes(path, SMALL_BYTES).map_err(|error| cannot(&error))?;
    let text = decode(bytes).ok_or_else(|| cannot(&"it is no text in UTF-8 or UTF-16"))?;
    let mut kubeconfig = Kubeconfig::from_yaml(&text).map_err(|error| describe(path, &error))?;
    let Some(folder) = path.parent() else { return Ok(kubeconfig) };
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        make_absolute(folder, &mut cluster.certificate_authority);
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        for file in [&mut user.client_certificate, &mut user.client_key, &mut user.token_file] {
            make_absolute(folder, file);
        }
        // A command without a slash is searched for in PATH.
        if let Some(exec) = user.exec.as_mut().filter(|exec| exec.command.as_ref().is_some_and(|command| command.contains('/'))) {
            make_absolute(folder, &mut exec.command);
        }
    }
    Ok(kubeconfig)
}

/// Returns a text that may begin with a byte order mark.
fn decode(bytes: Vec<u8>) -> Option<String> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
        if rest.is_empty() { String::from_utf16(&units).ok() } else { None }
    };
    match bytes.as_slice() {
        [0xff, 0xfe, text @ ..] => utf16(text, u16::from_le_bytes),
        [0xfe, 0xff, text @ ..] => utf16(text, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, text @ ..] => String::from_utf8(text.to_vec()).ok(),
        _ => String::from_utf8(bytes).ok(),
    }
}

fn make_absolute(folder: &Path, file: &mut Option<String>) {
    if let Some(path) = file.as_mut().filter(|path| Path::new(path.as_str()).is_relative())
        && let Some(absolute) = folder.join(&*path).to_str()
    {
        absolute.clone_into(path);
    }
}

/// Reads the files that the cluster and the user of a context name, since the client itself reads them without a bound.
fn read_named_files(kubeconfig: &mut Kubeconfig, context: Option<&str>) -> Result<(), String> {
    let Some(name) = context.or(kubeconfig.current_context.as_deref()) else { return Ok(()) };
    let chosen = kubeconfig.contexts.iter().find(|named| named.name == name).and_then(|named| named.context.clone());
    let Some(chosen) = chosen else { return Ok(()) };
    let cluster = kubeconfig.clusters.iter_mut().find(|named| named.name == chosen.cluster);
    if let Some(cluster) = cluster.and_then(|named| named.cluster.as_mut()) {
        read_cluster_files(cluster)?;
    }
    let user = kubeconfig.auth_infos.iter_mut().find(|named| Some(&named.name) == chosen.user.as_ref());
    if let Some(user) = user
        && let Some(credentials) = user.auth_info.as_mut()
    {
        let name = &user.name;
        check_user(credentials).map_err(|error| format!("user {name}: {error}"))?;
    }
    Ok(())
}

fn read_cluster_files(cluster: &mut Cluster) -> Result<(), String> {
    if let (None, Some(file)) = (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        cluster.certificate_authority_data = Some(read_base64("certificate-authority", file)?);
    }
    Ok(())
}

/// Reads a user's certificate and key, and checks that its token can be sent.
fn check_user(user: &mut AuthInfo) -> Result<(), String> {
    if let (None, Some(file)) = (&user.client_certificate_data, &user.client_certificate) {
        user.client_certificate_data = Some(read_base64("client-certificate", file)?);
    }
    if let (None, Some(file)) = (&user.client_key_data, &user.client_key) {
        user.client_key_data = Some(SecretString::from(read_base64("client-key", file)?));
    }
    let key = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    for (name, data) in [("client-certificate-data", user.client_certificate_data.as_deref()), ("client-key-data", key)] {
        if data.is_some_and(|data| STANDARD.decode(data).is_err()) {
            return Err(format!("{name} is no base64"));
        }
    }
    if let Some(token) = &user.token {
        user.token = Some(SecretString::from(trimmed("token", token.expose_secret())?));
    }
    for (name, value) in user.auth_provider.iter_mut().flat_map(|provider| &mut provider.config) {
        if name.ends_with("-token") {
            *value = trimmed(name, value)?;
        }
    }
    if let (None, Some(file)) = (&user.token, &user.token_file) {
        let text = files::read_text(Path::new(file), SMALL_BYTES);
        let text = text.map_err(|error| format!("cannot read tokenFile {file}: {error}"))?;
        // The client reads it again every minute, and sends its content.
        if text != trimmed("tokenFile", &text)? {
            return Err(format!("tokenFile {file} begins or ends with a space or a line break: write the token alone into it"));
        }
    }
    Ok(())
}

fn read_base64(key: &str, file: &str) -> Result<String, String> {
    let bytes = files::read_bytes(Path::new(file), SMALL_BYTES);
    bytes.map(|bytes| STANDARD.encode(bytes)).map_err(|error| format!("cannot read {key} {file}: {error}"))
}

/// Returns a token without the white space around it; an error if an HTTP header cannot carry it.
fn trimmed(key: &str, token: &str) -> Result<String, String> {
    let token = token.trim();
    if token.chars().any(|character| character.is_ascii_control()) {
        return Err(format!("its {key} has a line break or a control character within: write the token in one line"));
    }
    Ok(token.to_owned())
}

/// Describes the error of a kubeconfig and its place, without any of its values.
fn describe(path: &Path, error: &KubeconfigError) -> String {
    let KubeconfigError::Parse(error) = error else { return format!("{}: {error}", path.display()) };
    let kind = yaml_error_kind(error);
    match error.location() {
        Some(at) => format!("cannot read {}: line {}, column {}: {kind}", path.display(), at.line(), at.column()),
        None => format!("cannot read {}: {kind}", path.display()),
    }
}

/// Returns the kind of an error in YAML. The text of the error would quote the file.
fn yaml_error_kind(error: &serde_saphyr::Error) -> String {
    match error.without_snippet() {
        serde_saphyr::Error::SerdeMissingField { field, .. } => format!("the key {field} is missing"),
        serde_saphyr::Error::DuplicateMappingKey { .. } => "a key comes twice".to_owned(),
        serde_saphyr::Error::SerdeInvalidType { .. } | serde_saphyr::Error::Unexpected { .. } => {
            "a value is of another type than its key has".to_owned()
        }
        _ => "it is no YAML of a kubeconfig".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SECRET: &str = "M4RKsecret77";

    /// Returns a kubeconfig whose user has these keys, in the form of JSON.
    fn with_user(user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: k, cluster: {{server: \"http://127.0.0.1:1\"}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: u, namespace: n}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    fn read(folder: &Path, text: &str) -> Result<Config, String> {
        let path = folder.join("config");
        fs::write(&path, text).unwrap();
        run(load(&[path], None))
    }

    fn connect(folder: &Path, text: &str) -> Result<(), String> {
        let config = read(folder, text)?;
        run(client(config)).map(drop)
    }

    #[test]
    fn no_error_of_a_kubeconfig_has_a_value_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut broken = Vec::new();
        for key in ["token", "password", "username", "client-key-data", "client-certificate-data", "tokenFile", "as", "exec"] {
            for value in [
                format!("[\"{SECRET}\""),
                format!("[\"{SECRET}\"]"),
                format!("{{a: \"{SECRET}\"}}"),
                format!("\"{SECRET}"),
                format!("!x \"{SECRET}\", {key}: \"{SECRET}\""),
                format!("\"{SECRET}\", {key}: \"{SECRET}\""),
                format!("\"{SECRET}\\n{SECRET}\""),
                format!("\"{SECRET}\"\n{SECRET}"),
                format!("*{SECRET}"),
                format!("&a [*a, \"{SECRET}\"]"),
            ] {
                // A path and a name are no secrets.
                let is_shown = ["tokenFile", "as", "username"].contains(&key) && !value.starts_with(['[', '{']);
                if !is_shown {
                    broken.push(with_user(&format!("{key}: {value}")));
                }
            }
        }
        let plain = with_user(&format!("token: \"{SECRET}\""));
        broken.extend([format!("{plain}{SECRET}\n"), format!("{plain}\t- {SECRET}"), SECRET.to_owned(), format!("[{SECRET}")]);
        let mut refused = 0;
        for text in broken {
            if let Err(error) = connect(folder.path(), &text) {
                assert!(!error.contains(SECRET) && !error.contains("M4RK"), "{text}: {error}");
                refused += 1;
            }
        }
        assert!(refused > 30, "only {refused} are refused");
        let error = connect(folder.path(), &plain.replace("token: \"", "token: [\"")).unwrap_err();
        assert!(error.contains("config: line ") && error.contains(", column "), "{error}");
    }

    #[test]
    fn a_plugin_that_fails_is_named_with_its_status_alone() {
        let folder = tempfile::tempdir().unwrap();
        let plugin = |script: &str| {
            let args = format!("[\"-c\", \"{script}\"]");
            let exec = format!(
                "exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, args: {args}}}"
            );
            connect(folder.path(), &with_user(&exec)).unwrap_err()
        };
        let failed = plugin(&format!("echo {SECRET}; echo {SECRET} >&2; exit 3"));
        assert!(failed.contains("sh: ") && failed.contains("exit status: 3") && !failed.contains(SECRET), "{failed}");
        let odd = plugin(&format!("echo {SECRET}"));
        assert!(odd.contains("sh: ") && odd.contains("ExecCredential") && !odd.contains(SECRET), "{odd}");
        let missing = format!("exec: {{apiVersion: v1, command: /nowhere/plugin, args: [{SECRET}]}}");
        let missing = connect(folder.path(), &with_user(&missing)).unwrap_err();
        assert!(missing.contains("/nowhere/plugin") && !missing.contains(SECRET), "{missing}");
    }

    #[test]
    fn endless_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let endless = run(load(&[PathBuf::from("/dev/zero")], None)).unwrap_err();
        assert!(endless.contains("/dev/zero") && endless.contains("more than 16 MiB"), "{endless}");
        for key in ["client-certificate", "client-key", "tokenFile"] {
            let error = read(folder.path(), &with_user(&format!("{key}: /dev/zero"))).unwrap_err();
            assert!(error.contains("user u") && error.contains(key) && error.contains("more than 16 MiB"), "{error}");
        }
        let authority = with_user("").replace("server:", "certificate-authority: /dev/zero, server:");
        let error = read(folder.path(), &authority).unwrap_err();
        assert!(error.contains("certificate-authority") && error.contains("more than 16 MiB"), "{error}");
    }

    #[test]
    fn a_token_is_sent_without_its_line_end_and_refused_with_one_within() {
        let folder = tempfile::tempdir().unwrap();
        let config = read(folder.path(), &with_user("token: \"abc\\n\"")).unwrap();
        assert_eq!(config.auth_info.token.unwrap().expose_secret(), "abc");
        let error = read(folder.path(), &with_user("token: \"abc\\ndef\"")).unwrap_err();
        assert!(error.contains("user u: its token") && !error.contains("abc"), "{error}");
        fs::write(folder.path().join("token"), "abc\n").unwrap();
        let error = read(folder.path(), &with_user("tokenFile: token")).unwrap_err();
        assert!(error.contains("write the token alone") && error.contains("token"), "{error}");
        fs::write(folder.path().join("token"), "abc").unwrap();
        let config = read(folder.path(), &with_user("tokenFile: token")).unwrap();
        assert_eq!(config.auth_info.token_file.unwrap(), folder.path().join("token").to_str().unwrap());
    }

    /// Merges the files of `KUBECONFIG` like kubectl: the first one that sets a name wins.
    #[test]
    fn files_are_merged_and_texts_of_every_encoding_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        fs::write(&one, "users: [{name: u, user: {token: first}}]\n").unwrap();
        let text = with_user("token: second");
        let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        for bytes in [text.as_bytes().to_vec(), [b"\xef\xbb\xbf", text.as_bytes()].concat(), utf16] {
            fs::write(&other, bytes).unwrap();
            let config = run(load(&[one.clone(), other.clone()], Some("c"))).unwrap();
            assert_eq!((config.auth_info.token.unwrap().expose_secret(), config.default_namespace.as_str()), ("first", "n"));
        }
        fs::write(&other, b"\xff\xfe\x00").unwrap();
        assert!(run(load(std::slice::from_ref(&other), None)).unwrap_err().contains("no text"));
        let missing = run(load(&[one], Some("elsewhere"))).unwrap_err();
        assert!(missing.contains("elsewhere"), "{missing}");
    }
}
