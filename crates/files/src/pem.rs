//! Certificates and private keys of PEM files. No error quotes anything of a file, which may have a key.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::read_bytes;

/// Reads the certificates of a file of at most `max_bytes`. A file without any is an error.
pub fn read_certificates(path: &Path, max_bytes: u64) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read_bytes(path, max_bytes)?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>();
    let certificates = found.map_err(|_| invalid("it is no PEM"))?;
    if certificates.is_empty() { Err(invalid("it contains no PEM certificate")) } else { Ok(certificates) }
}

/// Reads the private key of a file of at most `max_bytes`.
pub fn read_private_key(path: &Path, max_bytes: u64) -> Result<PrivateKeyDer<'static>> {
    let no_key = |_| invalid("it contains no PEM private key: its first line is -----BEGIN PRIVATE KEY-----");
    PrivateKeyDer::from_pem_slice(&read_bytes(path, max_bytes)?).map_err(no_key)
}

fn invalid(text: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";

    #[test]
    fn a_file_has_certificates_or_a_key_and_no_error_quotes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.pem");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write(&format!("{CERTIFICATE}{KEY}{CERTIFICATE}"));
        assert_eq!(read_certificates(&path, 1000).unwrap().len(), 2);
        assert!(read_private_key(&path, 1000).is_ok());
        for (text, of_certificates, of_key) in [
            ("", "it contains no PEM certificate", "it contains no PEM private key"),
            (KEY, "it contains no PEM certificate", ""),
            ("-----BEGIN PRIVATE KEY-----\nhunter2", "it is no PEM", "it contains no PEM private key"),
            ("-----BEGIN PRIVATE KEY-----hunter2-----END PRIVATE KEY-----", "it", "it contains no PEM private key"),
        ] {
            write(text);
            let errors = [
                read_certificates(&path, 1000).map(drop).unwrap_err().to_string(),
                read_private_key(&path, 1000).map(drop).map_or_else(|error| error.to_string(), |()| String::new()),
            ];
            assert!(errors[0].starts_with(of_certificates) && errors[1].starts_with(of_key), "{text}: {errors:?}");
            assert!(errors.iter().all(|error| !error.contains("hunter2") && !error.contains("104")), "{errors:?}");
        }
        let endless = read_certificates(Path::new("/dev/zero"), 1000).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::FileTooLarge);
    }
}
