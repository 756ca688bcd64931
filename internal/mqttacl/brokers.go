package mqttacl

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Mosquitto returns the acl_file for Mosquitto 2.0. It does not bind client ids, because rules of Mosquitto
// cannot; use_username_as_clientid does.
func Mosquitto(rules []Rules) string {
	var b strings.Builder
	b.WriteString("# Written by hawser mqtt acl --for=mosquitto. Needs in mosquitto.conf:\n" +
		"#   use_identity_as_username true\n" +
		"#   use_username_as_clientid true   # else one client can take over the session of another\n")
	for _, r := range rules {
		fmt.Fprintf(&b, "\nuser %s\n", r.User)
		for _, t := range r.Publish {
			fmt.Fprintf(&b, "topic write %s\n", t)
		}
		for _, t := range r.Subscribe {
			fmt.Fprintf(&b, "topic read %s\n", t)
		}
	}
	b.WriteString("\n# Everything else is denied: Mosquitto denies what no line allows. A line\n" +
		"# \"topic deny #\" would deny what is allowed above, too.\n")
	return b.String()
}

// EMQX returns the file acl.conf for EMQX 5.
func EMQX(rules []Rules) string {
	var b strings.Builder
	b.WriteString("%% Written by hawser mqtt acl --for=emqx. Needs in emqx.conf:\n" +
		"%%   mqtt.peer_cert_as_username = cn\n" +
		"%%   mqtt.peer_cert_as_clientid = cn   # else one client can take over the session of another\n" +
		"%%   authorization.no_match = deny\n")
	for _, r := range rules {
		client := fmt.Sprintf("{'and', [{username, %q}, {clientid, %q}]}", r.User, r.ClientID)
		fmt.Fprintf(&b, "\n{allow, %s, publish, [%s]}.\n", client, quoted(r.Publish))
		fmt.Fprintf(&b, "{allow, %s, subscribe, [%s]}.\n", client, quoted(r.Subscribe))
	}
	b.WriteString("\n{deny, all}.\n")
	return b.String()
}

func quoted(topics []string) string {
	texts := make([]string, 0, len(topics))
	for _, t := range topics {
		texts = append(texts, fmt.Sprintf("%q", t))
	}
	return strings.Join(texts, ", ")
}

// maxPolicy is the maximum number of characters of a policy of AWS IoT Core, maxClientID the maximum number of
// bytes of a client id.
const maxPolicy, maxClientID = 2048, 128

// Account is the AWS account and region of AWS IoT Core.
type Account struct{ Partition, Region, ID string }

// awsPolicy is a policy document.
type awsPolicy struct {
	Version   string
	Statement []awsStatement
}

type awsStatement struct {
	Effect      string
	Action      []string
	Resource    []string `json:",omitempty"`
	NotResource []string `json:",omitempty"`
}

// AWSPolicy is a policy in the form of `aws iot create-policy --cli-input-json`.
type AWSPolicy struct {
	PolicyName     string `json:"policyName"`
	PolicyDocument string `json:"policyDocument"`
}

// AWS returns a policy per client for AWS IoT Core, named <prefix>-<name>. Attach each to the certificate of
// its client. A policy denies everything that it does not allow, also what other policies of the certificate
// allow.
func AWS(rules []Rules, a Account, prefix string) ([]AWSPolicy, error) {
	policies := make([]AWSPolicy, 0, len(rules))
	for _, r := range rules {
		if n := len(r.ClientID); n > maxClientID {
			return nil, fmt.Errorf("client id of %s has %d bytes, AWS IoT Core takes at most %d", r.Name, n, maxClientID)
		}
		document, err := json.Marshal(a.policy(r))
		if err != nil {
			return nil, fmt.Errorf("policy of %s: %w", r.Name, err)
		}
		if len(document) > maxPolicy {
			return nil, fmt.Errorf("policy of %s: it has %d characters, AWS IoT Core takes at most %d: use shorter names or topics", r.Name, len(document), maxPolicy)
		}
		policies = append(policies, AWSPolicy{PolicyName: prefix + "-" + r.Name, PolicyDocument: string(document)})
	}
	return policies, nil
}

func (a Account) policy(r Rules) awsPolicy {
	arn := func(kind, name string) string {
		return "arn:" + a.Partition + ":iot:" + a.Region + ":" + a.ID + ":" + kind + "/" + name
	}
	client := []string{arn("client", r.ClientID)}
	var publish, subscribe, receive, all []string
	for _, t := range r.Publish {
		publish = append(publish, arn("topic", starred(t)))
		all = append(all, "arn:*:iot:*:*:topic/"+starred(t))
	}
	for _, t := range r.Subscribe {
		subscribe = append(subscribe, arn("topicfilter", t)) // a "+" in a filter has no special meaning here
		receive = append(receive, arn("topic", starred(t)))
		all = append(all, "arn:*:iot:*:*:topic*/"+starred(t))
	}
	return awsPolicy{Version: "2012-10-17", Statement: []awsStatement{
		{Effect: "Allow", Action: []string{"iot:Connect"}, Resource: client},
		{Effect: "Allow", Action: []string{"iot:Publish"}, Resource: publish},
		{Effect: "Allow", Action: []string{"iot:Subscribe"}, Resource: subscribe},
		{Effect: "Allow", Action: []string{"iot:Receive"}, Resource: receive},
		{Effect: "Deny", Action: []string{"iot:*"}, NotResource: append(client, all...)},
	}}
}

// starred replaces "+" by the wildcard of policies. That matches several levels too; the last level stays
// fixed.
func starred(topic string) string { return strings.ReplaceAll(topic, "+", "*") }
