//! Rules of `ModelProvider`: an https URL that carries no secret, the bounds of its models, prices, timeouts and caps.

use super::grammar;
use super::node::Node;

pub fn shape(provider: &mut Node<'_>) {
    let spec = &mut provider.at("spec");
    spec.at("url")
        .chars(1, 2_048)
        .rule("!self.contains('@')", "may carry no credentials ('@'): the key belongs into the Secret that secretRef names")
        .rule("!self.contains('?') && !self.contains('#')", "may have no query ('?') and no fragment ('#')")
        .rule(
            r"self.matches(r'^https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~!$&()*+,;=:%/@?#-]*)?$') && isURL(self)",
            "must be the full URL of the dialect's endpoint, such as https://api.example.com/v1/chat/completions",
        );
    spec.rule_on(
        "url",
        "self.url.startsWith('https://') || self.plainHTTP == 'Allowed'",
        "must begin with https://; http:// is for a server inside the cluster and needs plainHTTP: Allowed",
    );
    spec.at("caBundle").chars(1, 65_536);
    spec.rule_on(
        "caBundle",
        "!has(self.caBundle) || self.caBundle.startsWith('-----BEGIN CERTIFICATE-----')",
        "must be PEM certificates: it begins with -----BEGIN CERTIFICATE-----",
    );
    grammar::object_name(&mut spec.at("secretRef.name"));
    spec.at("secretRef.key")
        .chars(1, 253)
        .rule("self.matches(r'^[-._A-Za-z0-9]+$')", "must be a key of a Secret: letters, digits, '-', '_' and '.'");
    spec.at("allowedNamespaces.matchLabels").entries(16).rule(
        "self.all(key, size(key) <= 317 && key.matches(r'^([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",
        "must have label names as keys, such as team or example.com/team",
    );
    spec.at("allowedNamespaces.matchLabels{}").chars(0, 63).rule(
        "self.matches(r'^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')",
        "must be a label's value: at most 63 letters, digits, '-', '_' or '.'",
    );

    spec.at("models").list_by("name", 1, 64);
    let mut model = spec.at("models[]");
    grammar::text(&mut model.at("name"), 1, 256);
    for price in ["input", "output", "cachedInput", "cacheWrite"] {
        grammar::decimal(&mut model.at("pricePerMillion").at(price));
    }
    model.at("maxOutputTokens").range(1, 1_000_000).default(4_096);

    for (timeout, default) in [("connect", "5s"), ("firstByte", "60s"), ("idle", "30s"), ("total", "10m")] {
        grammar::duration(spec.at("timeouts").at(timeout).default(default), 1);
    }
    spec.at("caps.requestBytes").range(1_024, 16 << 20).default(1 << 20);
    spec.at("caps.responseBytes").range(1_024, 256 << 20).default(16 << 20);
}
