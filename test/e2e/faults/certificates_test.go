package faults

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

func TestOperatorCertificateExpired(t *testing.T) {
	o := sit(t)
	if _, err := o.PKI().Issue(pki.Request{Role: pki.Operator, Name: "olga", Valid: pki.Starting(time.Now().Add(-48*time.Hour), 24*time.Hour)}, true); err != nil {
		t.Fatal(err)
	}
	o.trust("olga", pki.Operator)
	looks := []look{
		{command: "hawser get clusters " + cluster, says: `expired`},
		{command: "hawser doctor", says: `expired`},
	}
	o.sees("operator certificate expired", looks...)
	o.trust("operator", pki.Operator)
	o.isWell(looks...)
}
