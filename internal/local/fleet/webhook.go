package fleet

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
)

// webhookAt is the address of a webhook of deploy/ on this machine.
type webhookAt struct {
	// off: the hub has no webhook.
	off bool
	// ip is used instead of the pods of its Service; caBundle verifies it.
	ip       string
	caBundle []byte
}

// onThisMachine returns the manifests with each webhook at the address of its process, because the
// kube-apiserver cannot reach Services here.
func (r rendered) onThisMachine(at webhookAt) ([]byte, error) {
	var out []byte
	for _, o := range r.all {
		raw := o.raw
		if o.kind == "ValidatingWebhookConfiguration" {
			if at.off {
				continue
			}
			var c admissionregistrationv1.ValidatingWebhookConfiguration
			err := o.into(&c)
			for i := range c.Webhooks {
				if err == nil {
					err = r.dialed(&c.Webhooks[i].ClientConfig, at)
				}
			}
			if err == nil {
				raw, err = json.Marshal(c)
			}
			if err != nil {
				return nil, fmt.Errorf("ValidatingWebhookConfiguration %s: %w", c.Name, err)
			}
		}
		out = append(append(append(out, "---\n"...), raw...), '\n')
	}
	return out, nil
}

// dialed replaces the Service of a webhook by its URL.
func (r rendered) dialed(c *admissionregistrationv1.WebhookClientConfig, at webhookAt) error {
	if c.Service == nil {
		return fmt.Errorf("no Service in clientConfig")
	}
	s, ok := r.services[c.Service.Namespace+"/"+c.Service.Name]
	if !ok {
		return fmt.Errorf("service %s/%s is not rendered", c.Service.Namespace, c.Service.Name)
	}
	port := int32(443)
	if c.Service.Port != nil {
		port = *c.Service.Port
	}
	path := ""
	if c.Service.Path != nil {
		path = *c.Service.Path
	}
	for _, p := range s.Spec.Ports {
		if p.Port != port {
			continue
		}
		target, ok := r.containerPort(p)
		if !ok {
			return fmt.Errorf("port %d of Service %s leads to no port of the container", port, s.Name)
		}
		url := "https://" + net.JoinHostPort(at.ip, strconv.Itoa(int(target))) + path
		c.Service, c.URL, c.CABundle = nil, &url, at.caBundle
		return nil
	}
	return fmt.Errorf("service %s has no port %d", s.Name, port)
}

// containerPort returns the target port of a Service port.
func (r rendered) containerPort(p corev1.ServicePort) (int32, bool) {
	for _, have := range r.deployment.Spec.Template.Spec.Containers[0].Ports {
		if have.ContainerPort == p.TargetPort.IntVal || have.Name != "" && have.Name == p.TargetPort.StrVal {
			return have.ContainerPort, true
		}
	}
	return 0, false
}
