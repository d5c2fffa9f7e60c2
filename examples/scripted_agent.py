"""A model behind an OpenAI-compatible server that patches what it knows (docs/agents.md)."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

PATCH = """<apply_patch>
shop/shipping.py
<<<<<<< SEARCH
    if amount > FREE_FROM:
=======
    if amount >= FREE_FROM:
>>>>>>> REPLACE
</apply_patch>"""


class Model(BaseHTTPRequestHandler):
    """Answers one issue with a patch, and all others with nothing."""

    def do_GET(self):
        self.reply({"data": [{"id": "scripted"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = asked["messages"][-1]["content"]
        text = PATCH if "exactly 50.00" in last else "<submit>"
        self.reply({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})

    def reply(self, found):
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


HTTPServer(("127.0.0.1", 8123), Model).serve_forever()
