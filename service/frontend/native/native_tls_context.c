/* What TLS is here, and the certificates of a server: an OpenSSL context made of PEM text.
 *
 * TLS 1.2 with the ciphers that HTTP/2 allows, or TLS 1.3. A client must offer h2 by ALPN: gRPC demands it, and who offers
 * nothing or other protocols alone is told no_application_protocol. Nothing is renegotiated or compressed. Sessions are
 * resumed by tickets, whose keys are the context's: those from before new certificates are worth nothing.
 */
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "native_state.h"

static const char CIPHERS[] = "ECDHE+AESGCM:ECDHE+CHACHA20"; /* of TLS 1.2 */
static const unsigned char SESSIONS[] = "headrace";
static const unsigned char H2[] = {2, 'h', '2'};

static int choose_protocol(SSL *ssl, const unsigned char **chosen, unsigned char *length, const unsigned char *offered,
                           unsigned int offered_length, void *unused) {
    (void)ssl, (void)unused;
    for (unsigned int at = 0; at < offered_length; at += 1u + offered[at])
        if (offered_length - at >= sizeof H2 && memcmp(offered + at, H2, sizeof H2) == 0) {
            *chosen = offered + at + 1;
            *length = 2;
            return SSL_TLSEXT_ERR_OK;
        }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

/* Who offers no protocol at all is refused here: OpenSSL would not ask choose_protocol. */
static int look_at_hello(SSL *ssl, int *alert, void *unused) {
    const unsigned char *offered;
    size_t length;
    (void)unused;
    if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &offered, &length))
        return SSL_CLIENT_HELLO_SUCCESS;
    *alert = SSL_AD_NO_APPLICATION_PROTOCOL;
    return SSL_CLIENT_HELLO_ERROR;
}

static int no_password(char *to, int room, int writing, void *unused) {
    (void)to, (void)room, (void)writing, (void)unused;
    return -1;
}

static int fail(hr_error *err, const char *what) {
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    return hr_fail(err, HR_INVALID_ARGUMENT, "%s cannot be used: %s", what, why ? why : "expected PEM text");
}

/* Calls `use` with each certificate of the text: how many there were, or -1. */
static int each_certificate(hr_view pem, int (*use)(SSL_CTX *, X509 *, int), SSL_CTX *context) {
    BIO *text = BIO_new_mem_buf(pem.data, (int)pem.length);
    X509 *certificate;
    int count = 0, used = 1;
    while (text && used == 1 && (certificate = PEM_read_bio_X509(text, NULL, no_password, NULL))) {
        used = use(context, certificate, count++);
        X509_free(certificate);
    }
    BIO_free(text);
    bool ended = used == 1 && ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    if (ended) ERR_clear_error();
    return ended ? count : -1;
}

static int use_own(SSL_CTX *context, X509 *certificate, int number) {
    return number == 0 ? SSL_CTX_use_certificate(context, certificate)
                       : (int)SSL_CTX_add1_chain_cert(context, certificate);
}

static int use_root(SSL_CTX *context, X509 *certificate, int number) {
    (void)number;
    return X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate) == 1 &&
           SSL_CTX_add_client_CA(context, certificate) == 1;
}

static int use_key(SSL_CTX *context, hr_view pem) {
    BIO *text = BIO_new_mem_buf(pem.data, (int)pem.length);
    EVP_PKEY *key = text ? PEM_read_bio_PrivateKey(text, NULL, no_password, NULL) : NULL;
    int used = key ? SSL_CTX_use_PrivateKey(context, key) : 0;
    EVP_PKEY_free(key);
    BIO_free(text);
    return used == 1 && SSL_CTX_check_private_key(context) == 1 ? 0 : -1;
}

static int set_rules(SSL_CTX *context) {
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS); /* of connections that are silent */
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    SSL_CTX_set_client_hello_cb(context, look_at_hello, NULL);
    return SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
                   SSL_CTX_set_cipher_list(context, CIPHERS) == 1 &&
                   SSL_CTX_set_session_id_context(context, SESSIONS, sizeof SESSIONS - 1) == 1
               ? 0
               : -1;
}

static int fill(SSL_CTX *context, const hr_pem *pem, hr_error *err) {
    if (set_rules(context) < 0) return fail(err, "OpenSSL");
    if (each_certificate(pem->cert, use_own, context) < 1) return fail(err, "the server's certificate");
    if (use_key(context, pem->key) < 0) return fail(err, "the server's key");
    if (pem->root.length == 0) return 0;
    if (each_certificate(pem->root, use_root, context) < 1) return fail(err, "the root certificate");
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context), X509_V_FLAG_PARTIAL_CHAIN); /* as gRPC does */
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return 0;
}

static SSL_CTX *context_of(const hr_pem *pem, hr_error *err) {
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (context == NULL) fail(err, "OpenSSL");
    else if (fill(context, pem, err) == 0) return context;
    SSL_CTX_free(context);
    ERR_clear_error();
    return NULL;
}

/* Connections that are there keep the context that they began with. */
static void replace(hr_io *io, void *context) {
    SSL_CTX_free(io->tls);
    io->tls = context;
    SSL_CTX_up_ref(context);
}

int hr_native_set_tls(hr_native *n, const hr_pem *pem, hr_error *err) {
    SSL_CTX *context = context_of(pem, err);
    if (context == NULL) return -1;
    for (uint32_t i = 0; i < n->options.threads; i++) hr_io_ask(&n->ios[i], replace, context);
    SSL_CTX_free(context);
    return 0;
}

void hr_tls_free_thread(hr_io *io) {
    SSL_CTX_free(io->tls);
    free(io->sealed);
    free(io->spare);
}
