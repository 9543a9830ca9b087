//! A broker that refuses anonymous clients: TLS everywhere, users by password (SCRAM or PLAIN) or by certificate, access lists
//! that deny by default.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::mem::discriminant;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use eadt_bus::kafka::{KafkaBus, KafkaOptions, SaslMechanism, Secret, SecurityProtocol, SecuritySettings};
use eadt_bus::rights::{AclEntry, AclOperation, AclResource, PatternType};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde::Deserialize;
use tempfile::TempDir;

use super::{Classes, Kafka, SMALL, fetch_path, on_free_ports};
use crate::ports::free_ports;

/// The user that may do everything; known by certificate, as the broker itself is.
pub const ADMIN: &str = "admin";
const LISTENER: &str = "listener.name.sasl_ssl";
const MODULES: &str = "org.apache.kafka.common.security";

// Its issuer holds a private key.
impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// An authority and the certificates that it signed, as PEM files in a folder.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one. `name` is part of the files' names.
    pub fn new(dir: &Path, name: &str) -> Result<Self> {
        let dir = dir.join(name);
        fs::create_dir_all(&dir)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        fs::write(dir.join("ca.pem"), params.self_signed(&key)?.pem())?;
        Ok(Self { dir, issuer: Issuer::new(params, key) })
    }

    /// The authority's own certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Certificate and key of a new name, good for this machine as a server and for any client.
    pub fn sign(&self, name: &str) -> Result<(PathBuf, PathBuf)> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let (certificate_file, key_file) = (self.dir.join(format!("{name}.pem")), self.dir.join(format!("{name}.key")));
        fs::write(&certificate_file, certificate.pem())?;
        private(&key_file, &key.serialize_pem())?;
        // A key store in Java's format.
        private(&self.dir.join(format!("{name}.store")), &format!("{}{}", key.serialize_pem(), certificate.pem()))?;
        Ok((certificate_file, key_file))
    }
}

/// Writes a file that only its owner may read.
fn private(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
}

/// A running secured broker with its users.
pub struct SecuredKafka {
    // Ends before the folder goes.
    pub kafka: Kafka,
    pub authority: Authority,
    dir: TempDir,
    ssl_port: u16,
}

impl SecuredKafka {
    /// Starts one with these users, who may do nothing yet.
    pub fn start(users: &[&str]) -> Result<Self> {
        Self::start_with(users, &[])
    }

    /// The same with further lines for `server.properties`.
    pub fn start_with(users: &[&str], settings: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let authority = Authority::new(dir.path(), "authority")?;
        authority.sign("broker")?;
        authority.sign(ADMIN)?;
        let store = authority.dir.join("broker.store");
        let plain_users: Vec<String> = users.iter().map(|user| format!("user_{user}=\"{}\"", password(user))).collect();
        let plain_users = plain_users.join(" ");
        let lines = [
            "listener.security.protocol.map=SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL".to_owned(),
            "inter.broker.listener.name=SSL".to_owned(),
            "ssl.keystore.type=PEM".to_owned(),
            format!("ssl.keystore.location={}", store.display()),
            "ssl.truststore.type=PEM".to_owned(),
            format!("ssl.truststore.location={}", authority.ca_file().display()),
            "ssl.client.auth=required".to_owned(),
            // Users of the other listener prove a password.
            "listener.name.sasl_ssl.ssl.client.auth=none".to_owned(),
            "ssl.principal.mapping.rules=RULE:^.*CN=([^,]+).*$/$1/,DEFAULT".to_owned(),
            "sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256,PLAIN".to_owned(),
            format!("{LISTENER}.scram-sha-512.sasl.jaas.config={MODULES}.scram.ScramLoginModule required;"),
            format!("{LISTENER}.scram-sha-256.sasl.jaas.config={MODULES}.scram.ScramLoginModule required;"),
            format!("{LISTENER}.plain.sasl.jaas.config={MODULES}.plain.PlainLoginModule required {plain_users};"),
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned(),
            "allow.everyone.if.no.acl.found=false".to_owned(),
            format!("super.users=User:broker;User:{ADMIN}"),
        ];
        let mut format = Vec::new();
        for (user, mechanism) in users.iter().flat_map(|user| [(user, "SCRAM-SHA-512"), (user, "SCRAM-SHA-256")]) {
            format.push("--add-scram".to_owned());
            format.push(format!("{mechanism}=[name={user},password={}]", password(user)));
        }
        let classes = Classes::fetch()?;
        let (kafka, ssl_port) = on_free_ports(|| {
            let [ssl_port] = free_ports()?;
            let listeners = [
                format!(
                    "listeners=SASL_SSL://127.0.0.1:@PORT@,SSL://127.0.0.1:{ssl_port},CONTROLLER://127.0.0.1:@CONTROLLER_PORT@"
                ),
                format!("advertised.listeners=SASL_SSL://127.0.0.1:@PORT@,SSL://127.0.0.1:{ssl_port}"),
            ];
            let lines: Vec<&str> = listeners.iter().chain(&lines).map(String::as_str).chain(settings.iter().copied()).collect();
            Ok((Kafka::try_start(&classes, &SMALL, &lines, &format)?, ssl_port))
        })?;
        Ok(Self { kafka, authority, dir, ssl_port })
    }

    /// `host:port` of the listener for users with passwords.
    pub fn brokers(&self) -> String {
        self.kafka.brokers()
    }

    /// `host:port` of the listener for users with certificates.
    pub fn ssl_brokers(&self) -> String {
        format!("127.0.0.1:{}", self.ssl_port)
    }

    /// A user's file with the password.
    pub fn password_file(&self, user: &str) -> Result<PathBuf> {
        let file = self.dir.path().join(format!("{user}.password"));
        private(&file, &format!("{}\n", password(user)))?;
        Ok(file)
    }

    /// Returns the settings of a user with a password.
    pub fn user(&self, name: &str) -> SecuritySettings {
        SecuritySettings {
            protocol: SecurityProtocol::SaslSsl,
            mechanism: SaslMechanism::ScramSha512,
            username: name.to_owned(),
            password: Some(Secret::new(password(name))),
            ca_file: Some(self.authority.ca_file()),
            ..SecuritySettings::default()
        }
    }

    /// How a user is known by a certificate, signed now.
    pub fn holder(&self, name: &str) -> Result<SecuritySettings> {
        let (certificate, key) = self.authority.sign(name)?;
        Ok(SecuritySettings {
            protocol: SecurityProtocol::Ssl,
            ca_file: Some(self.authority.ca_file()),
            certificate_file: Some(certificate),
            key_file: Some(key),
            ..SecuritySettings::default()
        })
    }

    /// A client of this user.
    pub fn bus(&self, name: &str) -> eadt_bus::Result<KafkaBus> {
        let options = KafkaOptions::secured(self.brokers(), &[].into(), &self.user(name), "eadt")?;
        KafkaBus::connect(options.with_fetch(fetch_path()))
    }

    /// A client that may do everything.
    pub fn admin(&self) -> Result<KafkaBus> {
        let options = KafkaOptions::secured(self.ssl_brokers(), &[].into(), &self.holder(ADMIN)?, "eadt-admin")?;
        KafkaBus::connect(options.with_fetch(fetch_path())).context("connecting as the administrator")
    }

    /// Returns those rights of `rights` (all of the user's) that no action so far needed: by the broker's log, none used them, or
    /// another one allows the same.
    pub fn unneeded(&self, user: &str, rights: &BTreeSet<AclEntry>) -> Result<BTreeSet<AclEntry>> {
        let mut acts = BTreeSet::new();
        for line in BufReader::new(fs::File::open(self.kafka.log())?).lines() {
            acts.extend(act(&line?, user));
        }
        let mut unneeded = rights.clone();
        for (operation, resource) in &acts {
            let mut allowing = rights.iter().filter(|right| right.operation.implies(*operation) && covers(right, resource));
            if let (Some(only), None) = (allowing.next(), allowing.next()) {
                unneeded.remove(only);
            }
        }
        Ok(unneeded)
    }
}

fn covers(right: &AclEntry, resource: &AclResource) -> bool {
    let (given, name) = (right.resource.name(), resource.name());
    discriminant(&right.resource) == discriminant(resource)
        && if right.pattern == PatternType::Prefixed { name.starts_with(given) } else { name == given }
}

/// Returns the access that the authorizer granted this user in a line such as `… Principal = User:a is Allowed operation = READ
/// from host = 127.0.0.1 on resource = Topic:LITERAL:x for request = Fetch with resourceRefCount = 1 based on rule …`.
fn act(line: &str, user: &str) -> Option<(AclOperation, AclResource)> {
    let (_, rest) = line.split_once(&format!("Principal = User:{user} is Allowed operation = "))?;
    let (operation, rest) = rest.split_once(" from host = ")?;
    let (resource, _) = rest.split_once(" on resource = ")?.1.split_once(" for request = ")?;
    let operation = match operation {
        "READ" => AclOperation::Read,
        "WRITE" => AclOperation::Write,
        "CREATE" => AclOperation::Create,
        "ALTER" => AclOperation::Alter,
        "DESCRIBE" => AclOperation::Describe,
        "ALTER_CONFIGS" => AclOperation::AlterConfigs,
        "DESCRIBE_CONFIGS" => AclOperation::DescribeConfigs,
        _ => return None,
    };
    let (kind, name) = resource.split_once(":LITERAL:")?;
    Some((operation, of_kind(kind, name.to_owned())?))
}

/// A resource as Kafka and Strimzi name its kind.
fn of_kind(kind: &str, name: String) -> Option<AclResource> {
    match kind {
        "Topic" | "topic" => Some(AclResource::Topic(name)),
        "Group" | "group" => Some(AclResource::Group(name)),
        "TransactionalId" | "transactionalId" => Some(AclResource::TransactionalId(name)),
        _ => None,
    }
}

/// As in deploy/kafka/acls: a user of Strimzi's.
#[derive(Debug, Deserialize)]
struct KafkaUser {
    spec: Spec,
}

#[derive(Debug, Deserialize)]
struct Spec {
    authorization: Authorization,
}

#[derive(Debug, Deserialize)]
struct Authorization {
    acls: Vec<Acl>,
}

#[derive(Debug, Deserialize)]
struct Acl {
    resource: Named,
    operations: Vec<AclOperation>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    #[serde(rename = "type")]
    kind: String,
    name: String,
    pattern_type: PatternType,
}

/// The rights in the files of deploy/kafka/acls, by the part's name.
pub fn rights_of_parts() -> Result<BTreeMap<String, Vec<AclEntry>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kafka/acls");
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let user: KafkaUser = serde_saphyr::from_str(&fs::read_to_string(&path)?)?;
        let mut rights = Vec::new();
        for Acl { resource: Named { kind, name, pattern_type: pattern }, operations } in user.spec.authorization.acls {
            let Some(resource) = of_kind(&kind, name) else { bail!("{}: {kind}", path.display()) };
            rights.extend(operations.iter().map(|operation| AclEntry {
                resource: resource.clone(),
                pattern,
                operation: *operation,
            }));
        }
        let part =
            path.file_stem().and_then(|name| name.to_str()).with_context(|| format!("{} names no part", path.display()))?;
        all.insert(part.to_owned(), rights);
    }
    Ok(all)
}

impl std::fmt::Debug for SecuredKafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecuredKafka").field("kafka", &self.kafka).finish_non_exhaustive()
    }
}

/// The password of a user.
pub fn password(user: &str) -> String {
    format!("planted-{user}-7f3c1e")
}
