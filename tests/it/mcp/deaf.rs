//! Ports that no client gets far with.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use socket2::{Domain, Socket, Type};

/// A server with a certificate that nobody vouches for, made for this and used nowhere else. It serves until the tests
/// end.
pub(super) fn untrusted_tls() -> String {
    let cert = CertificateDer::from_pem_slice(include_bytes!("../../world/untrusted.crt.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../../world/untrusted.key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/mcp", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            // The client gives up in the handshake; a request would be read here and answered by the end of the stream.
            drop(StreamOwned::new(connection, stream).read(&mut [0; 1024]));
        }
    });
    url
}

/// A port whose queue is full: a connection to it is never accepted and never refused. It stays so until the tests end.
pub(super) fn full_port() -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    let filling = std::iter::from_fn(|| TcpStream::connect_timeout(&addr, std::time::Duration::from_millis(200)).ok());
    std::mem::forget((filling.take(8).collect::<Vec<_>>(), socket));
    format!("http://{addr}/mcp")
}
