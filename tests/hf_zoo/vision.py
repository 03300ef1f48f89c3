"""Image encoders and convolutional networks."""

from __future__ import annotations

from tests.hf_zoo.registry import BART, VIT, WIDTH, Sizes, add, floats, image_of, tokens

# The tables below stay as dense as a table should.
# fmt: off


def image_encoders() -> None:
    image = image_of()
    add("vit", "ViTForImageClassification", image, **VIT)
    add("deit", "DeiTForImageClassification", image, **VIT)
    add("beit", "BeitForImageClassification", image, **VIT, use_relative_position_bias=True)
    add("vit_msn", "ViTMSNForImageClassification", image, **VIT)
    add("dinov2", "Dinov2ForImageClassification", image, **WIDTH, image_size=32, patch_size=8)
    add("dinov2_with_registers", "Dinov2WithRegistersModel", image, **WIDTH, image_size=32, patch_size=8)
    add("dinov3_vit", "DINOv3ViTModel", image, **VIT)
    add("ijepa", "IJepaModel", image, **VIT)
    add("yolos", "YolosForObjectDetection", image, **{**VIT, "image_size": [32, 32]}, num_detection_tokens=5)
    add("vitdet", "VitDetModel", image, **WIDTH, image_size=32, patch_size=8, pretrain_image_size=32)
    add("dpt", "DPTForDepthEstimation", image, **{**VIT, "num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3],
         neck_hidden_sizes=[16, 16, 32, 32], fusion_hidden_size=16)
    add("siglip_vision", "SiglipVisionModel", image, **VIT)
    add("imagegpt", "ImageGPTModel", tokens, vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    swin = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}
    add("swin", "SwinForImageClassification", image, **swin)
    add("swinv2", "Swinv2ForImageClassification", image, **swin)
    add("swin2sr", "Swin2SRForImageSuperResolution", image_of(16), image_size=16, embed_dim=16, depths=[1, 1],
         num_heads=[2, 2], window_size=4)
    add("focalnet", "FocalNetForImageClassification", image, image_size=32, embed_dim=16, depths=[1, 1],
         focal_levels=[2, 2], focal_windows=[3, 3])
    add("hiera", "HieraForImageClassification", image, embed_dim=16, image_size=[32, 32], patch_stride=[4, 4],
         patch_size=[7, 7], patch_padding=[3, 3], mlp_ratio=2.0, depths=[1, 1, 1], num_heads=[2, 4, 8],
         embed_dim_multiplier=2.0, num_query_pool=2, query_stride=[2, 2], masked_unit_size=[4, 4],
         masked_unit_attention=[True, True, False])
    add("segformer", "SegformerForSemanticSegmentation", image, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1],
         hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2],
         decoder_hidden_size=16)
    add("glpn", "GLPNForDepthEstimation", image, depths=[1, 1, 1, 1], hidden_sizes=[16, 16, 32, 32],
         num_attention_heads=[2, 2, 4, 4], mlp_ratios=[2, 2, 2, 2], decoder_hidden_size=16)
    add("pvt", "PvtForImageClassification", image, image_size=32, hidden_sizes=[16, 32], num_encoder_blocks=2,
         depths=[1, 1], sequence_reduction_ratios=[2, 1], patch_sizes=[4, 2], strides=[4, 2],
         num_attention_heads=[2, 4], mlp_ratios=[2, 2])
    add("pvt_v2", "PvtV2ForImageClassification", image, image_size=32, num_encoder_blocks=2, depths=[1, 1],
         sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4],
         mlp_ratios=[2, 2])
    add("cvt", "CvtForImageClassification", image, patch_sizes=[7, 3, 3], patch_stride=[4, 2, 2],
         embed_dim=[16, 32, 32], num_heads=[1, 2, 4], depth=[1, 2, 3], mlp_ratio=[2.0, 2.0, 2.0])
    add("levit", "LevitForImageClassification", image_of(64), image_size=64, hidden_sizes=[32, 48, 64],
         num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8], mlp_ratio=[2, 2, 2],
         attention_ratio=[2, 2, 2])
    add("poolformer", "PoolFormerForImageClassification", image, hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1])
    add("mobilevit", "MobileViTForImageClassification", image_of(64), image_size=64, hidden_sizes=[32, 48, 64],
         neck_hidden_sizes=[16, 16, 24, 32, 32, 48, 64])
    add("mobilevitv2", "MobileViTV2ForImageClassification", image_of(64), image_size=64, width_multiplier=0.25)
    add("swiftformer", "SwiftFormerForImageClassification", image_of(64), image_size=64, depths=[1, 1, 1, 1],
         embed_dims=[16, 16, 32, 32], mlp_ratio=2)
    add("vit_mae", "ViTMAEModel", lambda: {**image(), "noise": floats(2, 16, seed=1)}, **VIT)
    add("videomae", "VideoMAEForVideoClassification", lambda: {"pixel_values": floats(1, 4, 3, 32, 32)}, **VIT,
         num_frames=4)
    # Patches hold about as many values as the model is wide, its inner layers 4 times that, as in the real ones.
    add("vivit", "VivitModel", lambda: {"pixel_values": floats(1, 4, 3, 16, 16)}, **WIDTH, intermediate_size=128,
         image_size=16, num_frames=4, tubelet_size=[2, 4, 4])
    add("timesformer", "TimesformerModel", lambda: {"pixel_values": floats(1, 2, 3, 16, 16)}, **WIDTH,
         intermediate_size=128, image_size=16, patch_size=4, num_frames=2)


def image_convolutions() -> None:
    image = image_of()
    stages: Sizes = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
    add("convnext", "ConvNextForImageClassification", image, **stages)
    add("convnextv2", "ConvNextV2ForImageClassification", image, **stages)
    add("dinov3_convnext", "DINOv3ConvNextModel", image, **stages)
    add("resnet", "ResNetForImageClassification", image, embedding_size=16, hidden_sizes=[32, 64], depths=[1, 2])
    add("resnet_basic", "ResNetForImageClassification", image, embedding_size=16, hidden_sizes=[16, 32],
         depths=[1, 2], layer_type="basic")
    add("regnet", "RegNetForImageClassification", image, embedding_size=16, hidden_sizes=[16, 32, 32, 48],
         depths=[1, 1, 1, 1], groups_width=8)
    add("bit", "BitForImageClassification", image, embedding_size=16, hidden_sizes=[32, 32, 64, 64],
         depths=[1, 1, 1, 1], num_groups=8)
    add("mobilenet_v1", "MobileNetV1ForImageClassification", image, depth_multiplier=0.25, min_depth=8)
    add("mobilenet_v2", "MobileNetV2ForImageClassification", image, depth_multiplier=0.35, last_hidden_size=64)
    add("efficientnet", "EfficientNetForImageClassification", image, image_size=32, width_coefficient=0.3,
         depth_coefficient=0.2, hidden_dim=384)
    add("hgnet_v2", "HGNetV2ForImageClassification", image, stem_channels=[3, 8, 16], hidden_sizes=[16, 24, 32, 48],
         stage_in_channels=[16, 16, 24, 32], stage_mid_channels=[8, 8, 16, 16], stage_out_channels=[16, 24, 32, 48],
         stage_num_blocks=[1, 1, 1, 1], stage_numb_of_layers=[2, 2, 2, 2], depths=[1, 1, 1, 1])
    add("textnet", "TextNetForImageClassification", image, stem_out_channels=16, hidden_sizes=[16, 16, 24, 32, 48],
         conv_layer_kernel_sizes=[[[3, 3]], [[3, 3]], [[3, 3]], [[3, 1]]], conv_layer_strides=[[1], [2], [2], [2]])
    add("superpoint", "SuperPointForKeypointDetection", image, encoder_hidden_sizes=[16, 16, 32, 32],
         decoder_hidden_size=32, descriptor_decoder_dim=32)
    resnet = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}
    detr: Sizes = {
        **{key: value for key, value in BART.items() if key not in ("vocab_size", "max_position_embeddings")},
        "num_queries": 5,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
    }
    add("detr", "DetrForObjectDetection", image_of(64), **detr,
         backbone_config={**resnet, "out_features": ["stage4"]})
    add("conditional_detr", "ConditionalDetrForObjectDetection", image_of(64), **detr,
         backbone_config={**resnet, "out_features": ["stage4"]})
    add("table_transformer", "TableTransformerForObjectDetection", image_of(64), **detr,
         backbone_config={**resnet, "out_features": ["stage4"]})
    swin = {"model_type": "swin", "image_size": 64, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 4, 4],
            "window_size": 2, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
    add("upernet", "UperNetForSemanticSegmentation", image_of(64), backbone_config=swin, hidden_size=16,
         use_auxiliary_head=False, pool_scales=[1, 2])
