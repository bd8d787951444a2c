.PHONY: gen
gen:
	.venv/bin/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. --grpc_python_out=. proto/gazette_platform/protocol/pb/protocol.proto
