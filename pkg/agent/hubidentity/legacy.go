package hubidentity

import (
	"cmp"
	"encoding/json"
	"time"
)

// formerClaim has the JSON keys of a [Claim] that former releases wrote instead of storeID and rejected. Remove
// it with the release after the first one that writes the new keys. A claim is written with the new keys when it
// changes.
type formerClaim struct {
	Epoch   string `json:"epoch"`
	Refused []struct {
		Identity string    `json:"identity"`
		Since    time.Time `json:"since"`
		BrokerRef
		Epoch string `json:"epoch"`
	} `json:"refused"`
}

// readFormer adds the values of the former keys in the JSON of a claim to c.
func readFormer(value []byte, c *Claim) error {
	var former formerClaim
	if err := json.Unmarshal(value, &former); err != nil {
		return err
	}
	c.StoreID = cmp.Or(c.StoreID, former.Epoch)
	for _, r := range former.Refused {
		r.StoreID = r.Epoch
		c.Rejected = append(c.Rejected, Rejected{Identity: r.Identity, Since: r.Since, BrokerRef: r.BrokerRef})
	}
	return nil
}
