package serve

import (
	_ "embed"
	"net/http"
)

// openapi.json describes each route, its bodies and its answers.
//
//go:embed openapi.json
var description []byte

func (h *Handler) openapi(w http.ResponseWriter, _ *http.Request) {
	begin(w, "application/json")
	w.WriteHeader(http.StatusOK)
	w.Write(description)
}
